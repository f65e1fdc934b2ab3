"""A method's own map of a sample as it is shown: a bar as long as the context, and the strongest stretches in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateau_dagster.readable import number
from gateau_dagster.report.evidence_card import level
from gateau_dagster.report.span_strips import SpanStrip
from gateau_dagster.report.text import printable

_MOST, _BEGINNING = 3, 160  # stretches that are told in words, characters of each


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of a strip, in thousandths of the context. text: what it says of itself."""

    left: float
    width: float
    level: int
    text: str


@dataclass(frozen=True, kw_only=True)
class StripCard:
    """The map of a sample by `methods`. most: the stretches that add most, and how they begin."""

    methods: Sequence[str]
    adds: str
    bars: Sequence[Bar]
    most: Sequence[tuple[float, str]]
    elsewhere: float


def strip_card(strip: SpanStrip) -> StripCard:
    """How a method's map is shown: a bar as long as the context, and the stretches that add most in words."""
    text = strip.sample.context
    whole, largest = max(1, len(text)), max((abs(one.added) for one in strip.stretches), default=0.0)
    adding = sorted((one for one in strip.stretches if one.added), key=lambda one: -abs(one.added))
    return StripCard(
        methods=strip.methods,
        adds=strip.adds,
        bars=[
            Bar(
                left=round(1000 * one.start / whole, 2),
                width=round(1000 * (one.end - one.start) / whole, 2),
                level=level(abs(one.added), largest),
                text=f"characters {one.start + 1:,} to {one.end:,}: {number(one.added)}",
            )
            for one in strip.stretches
        ],
        most=[(one.added, printable(text[one.start : min(one.end, one.start + _BEGINNING)])) for one in adding[:_MOST]],
        elsewhere=strip.elsewhere,
    )
