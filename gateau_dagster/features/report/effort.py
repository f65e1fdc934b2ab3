"""Sum the effort of scoring, table by table, from the stamps of the shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateau_dagster.storage import Stamp

Effort = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TableEffort:
    """A scored table: sums over its shards, each as it was last computed.

    Of its `shards`, `measured` record their effort. `peak`: the measured speed of a matrix product, FLOP/s. None: not
    known.
    """

    asset: str
    shards: int
    measured: int
    samples: int
    tokens: int
    flops: float
    seconds: float
    peak: float | None
    peak_memory: int | None  # bytes, the largest of a shard

    @property
    def speed(self) -> float | None:
        """Return the FLOP/s that scoring achieved in one process."""
        return self.flops / self.seconds if self.seconds > 0 else None

    @property
    def share_of_peak(self) -> float | None:
        """Return the achieved share of the matrix product's speed."""
        return self.speed / self.peak if self.speed is not None and self.peak else None


def efforts_by_asset(recorded: Mapping[tuple[str, str | None], Stamp | None]) -> dict[str, list[Effort]]:
    """Return `Stamp.effort` of every shard of the tables that a model scores; empty if nothing was measured.

    A table that a model computes for a method is included if one of its shards has an effort.
    """
    own = {asset for (asset, _), stamp in recorded.items() if "/" in asset and stamp is not None and stamp.effort}
    found: dict[str, list[Effort]] = {}
    for (asset, _), stamp in recorded.items():
        if stamp is not None and (asset == "cam" or asset.startswith("perplexity/") or asset in own):
            found.setdefault(asset, []).append(stamp.effort)
    return found


def table_efforts(efforts: Mapping[str, Sequence[Effort]]) -> list[TableEffort]:
    """Return one line per table, in the given order."""
    return [_table_effort(asset, shards) for asset, shards in efforts.items()]


def _table_effort(asset: str, shards: Sequence[Effort]) -> TableEffort:
    measured = [effort for effort in shards if effort.get("seconds") is not None]
    speeds = [effort["matrix_product_speed"] for effort in measured if effort.get("matrix_product_speed")]
    return TableEffort(
        asset=asset,
        shards=len(shards),
        measured=len(measured),
        samples=sum(effort["samples"] for effort in measured),
        tokens=sum(effort["tokens"] for effort in measured),
        flops=sum(effort["flops"] for effort in measured),
        seconds=sum(effort["seconds"] for effort in measured),
        peak=max(speeds, default=None),
        peak_memory=max((effort["peak_memory"] for effort in measured if effort.get("peak_memory")), default=None),
    )
