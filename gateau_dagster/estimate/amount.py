"""Define the work of a plan that is not scoring: its amount, and the expected seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Amount:
    """The work of one asset.

    models: how many are trained or answer questions.
    amount: tokens or questions, as `unit` names; None: unknown.
    seconds_low, seconds_high: None if they are not known.
    grounds: their source, or why they are not known.
    """

    asset: str
    models: int
    amount: int | None
    unit: str
    seconds_low: float | None
    seconds_high: float | None
    grounds: str
