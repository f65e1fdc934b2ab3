"""Work that is not scoring, as a plan shows it: how much of it, and the seconds that it should take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Of one asset. models: that are trained, or asked. amount: tokens or questions, as `unit` says; None: unknown.

    seconds_low, seconds_high: None where they are not known. grounds: where they come from, or why they are not.
    """

    asset: str
    models: int
    amount: int | None
    unit: str
    seconds_low: float | None
    seconds_high: float | None
    grounds: str
