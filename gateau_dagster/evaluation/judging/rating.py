"""The number in a judge's reply, as the benchmarks' own code reads it; none where it is not on the scale."""

from __future__ import annotations

import re

# FastChat's: the first rating in double brackets, else the first in single ones.
_DOUBLE = re.compile(r"\[\[(\d+\.?\d*)\]\]")
_SINGLE = re.compile(r"\[(\d+\.?\d*)\]")
# LongAlign's: the first number in the last double brackets.
_BRACKETS = re.compile(r"\[\[([^\]]+)\]\]")
_NUMBER = re.compile(r"\d+\.\d+|\d+")


def first_rating(reply: str, *, low: float, high: float) -> float | None:
    """The first `[[n]]` of a reply, or the first `[n]` where there is none; None outside of low..high."""
    match = _DOUBLE.search(reply) or _SINGLE.search(reply)
    return None if match is None else _on_scale(match[1], low, high)


def last_rating(reply: str, *, low: float, high: float) -> float | None:
    """The first number in the last `[[…]]` of a reply; None outside of low..high."""
    brackets = _BRACKETS.findall(reply)
    numbers = _NUMBER.findall(brackets[-1]) if brackets else []
    return _on_scale(numbers[0], low, high) if numbers else None


def _on_scale(number: str, low: float, high: float) -> float | None:
    value = float(number)
    return value if low <= value <= high else None
