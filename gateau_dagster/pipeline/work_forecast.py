"""Record the expected work on an asset; console and JSON are made from this record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.costs import PlannedCost

PEAKS = {
    "l4": (121e12, 30.3e12),
    "a10": (125e12, 31.2e12),
    "rtx4090": (165e12, 82.6e12),
    "a100": (312e12, 19.5e12),
    "l40s": (362e12, 91.6e12),
    "h100": (989e12, 67e12),
    "h200": (989e12, 67e12),
    "b200": (2250e12, 75e12),
}
"""FLOP/s of dense matrix products in 16 bits and in float32, by GPU, from the data sheets of their maker."""


@dataclass(frozen=True, kw_only=True)
class AssumedDevices:
    """The devices that the times of a plan are for.

    workers: how many score side by side; None: as configured.
    name: of the GPU, one of PEAKS; None: the device of this machine.
    price: of one device for an hour, in any currency; None: not known.
    """

    workers: int | None = None
    name: str | None = None
    price: float | None = None


@dataclass(frozen=True, kw_only=True)
class WorkForecast:
    """The expected work on one asset: its time, or the requests to a server. None: not known.

    asset: its name, or what is asked for.
    samples: number of samples to score.
    models: number of models that are trained or that answer.
    amount: number of tokens or questions, as `unit` names.
    flops: the floating-point operations of the passes.
    seconds, low, high: the expected time in seconds, and its bounds.
    devices: how many are paid for that time.
    grounds: the source of the time, or the reason why it is not known.
    by_setting: the forecast for the same samples with another setting, such as `scoring.segments: all`.
    variants: names of the variants whose answers are judged.
    cost, most: kept replies, requests, tokens and money, as expected and at most.
    currency: the currency of the money.
    """

    asset: str
    samples: int | None = None
    models: int | None = None
    amount: int | None = None
    unit: str = ""
    flops: float | None = None
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    devices: int = 1
    grounds: str = ""
    by_setting: Mapping[str, WorkForecast] = field(default_factory=dict)
    variants: Sequence[str] = ()
    cost: PlannedCost | None = None
    most: PlannedCost | None = None
    currency: str = ""

    def money(self, price: float) -> tuple[float, float] | None:
        """Return the bounds of what the devices cost at a price per hour and device; None for an unknown time."""
        if self.low is None or self.high is None:
            return None
        hourly = price * self.devices / 3600
        return hourly * self.low, hourly * self.high

    @property
    def record(self) -> dict[str, Any]:
        """Return the forecast as JSON: amounts and time, or the requests; `most` if nothing stays the same."""
        if self.unit == "requests":
            most = {} if self.most is None else {"most": self.most.record}
            return {
                "variants": [*self.variants],
                **(self.cost.record if self.cost is not None else {"tokens": {}}),
                **most,
            }
        names = ("asset", "samples", "models", "amount", "unit", "flops", "seconds", "grounds")
        return {
            **{name: getattr(self, name) for name in names},
            "tokens": self.amount if self.unit == "tokens" else None,
            "seconds_low": self.low,
            "seconds_high": self.high,
            "devices": self.devices,
            "by_setting": {setting: each.record for setting, each in self.by_setting.items()},
        }
