"""What stands in the cells of an experiment's tables: figures with their intervals, in digits that tell them apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateau_dagster.evaluation.statistics.compare import Interval
from gateau_dagster.readable import fixed
from gateau_dagster.report.effort import duration

_LARGE = 100
_MOST_DIGITS = 9
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as it stands in a table; `best`: whether it is not told apart from the column's best."""

    value: str
    interval: str = ""
    best: bool = False


def digits_for(half: float | None) -> int:
    """Decimals of figures that are known to ±`half`: two digits of that; 0 where it is not known."""
    return min(_MOST_DIGITS, max(0, 1 - math.floor(math.log10(half)))) if half else 0


def shown(value: float | None, unit: str, digits: int = 0) -> str:
    """One decimal of percentages, points and large numbers, three of the rest; `digits` where that is more."""
    usual = 1 if unit in {"%", "points"} or abs(value or 0.0) >= _LARGE else 3
    return fixed(value, max(usual, digits))


def span(low: float | None, high: float | None, unit: str, digits: int = 0) -> str:
    """An interval, or nothing where it is not known."""
    return "" if low is None or high is None else f"{shown(low, unit, digits)} to {shown(high, unit, digits)}"


def signed(value: float | None, unit: str, digits: int = 0) -> str:
    """A difference with its sign."""
    text = shown(value, unit, digits)
    return f"+{text}" if value is not None and value > 0 and text.strip("0.") else text


def in_unit(text: str, unit: str) -> str:
    """A figure with its unit."""
    return f"{text} {unit}".strip()


def value_cell(row: Row, unit: str) -> Cell:
    """The value in a row of tables.EXPERIMENT."""
    return Cell(value=shown(row["value"], unit), interval=span(row["low"], row["high"], unit), best=row["best"])


def difference_of_row(row: Row, unit: str, digits: int) -> Cell:
    """The difference in a row of tables.EXPERIMENT."""
    ends = (row["difference_low"], row["difference_high"])
    return Cell(value=signed(row["difference"], unit, digits), interval=span(*ends, unit, digits))


def difference_cell(found: Interval | None, unit: str, digits: int) -> Cell:
    """The difference of a group."""
    if found is None:
        return Cell(value="–")
    return Cell(value=signed(found.value, unit, digits), interval=span(found.low, found.high, unit, digits))


def cost_cell(row: Row, *, higher: bool, currency: str) -> Cell:
    """What a unit more than the reference took: time of a device, and the judge's money where it has a price.

    The interval is that of the time, by the difference's own: where no gain at all is possible it has no end.
    """
    hours, money = row["hours_per_point"], row["judge_cost_per_point"]
    if hours is None:
        return Cell(value="–")
    judged = "" if money is None else f" + {fixed(money, max(2, digits_for(money)))} {currency}"
    return Cell(value=f"{duration(3600 * hours)}{judged}", interval=_ends(row, 3600 * hours, higher=higher))


def _ends(row: Row, seconds: float, *, higher: bool) -> str:
    """`3.1 s to 12 s`, or `3.1 s or more`; nothing where the interval of the gain is not known."""
    low, high = row["difference_low"], row["difference_high"]
    if low is None or high is None:
        return ""
    whole = seconds * abs(row["difference"])
    least, most = (low, high) if higher else (-high, -low)
    return f"{duration(whole / most)} " + (f"to {duration(whole / least)}" if least > 0 else "or more")
