"""Format numbers for people, name amounts for a chart, and escape characters that a terminal or a page acts on."""

import difflib
import logging
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NAMES = 30  # listed in a message
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ud800-\udfff]")
"""Control characters except tab and line feed, marks that turn the direction of text, line separators, surrogates."""


def escaped_controls(text: str, *, lines: bool = False) -> str:
    """Return the text with each character of UNSAFE as a Python escape: `\\x1b`, `\\u202e`.

    Args:
        lines: whether line feeds are kept (for an error of several lines, or a longer text), and a carriage return
            before one is left out. Otherwise the result is one line, as for an id or a file's name.
    """
    if lines:
        return UNSAFE.sub(_escape, text.replace("\r\n", "\n"))
    return UNSAFE.sub(_escape, text).replace("\n", "\\n")


def printable(text: str) -> str:
    """Return the text with each invisible or direction-changing character shown as the replacement character."""
    return UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


class EscapedRecords(logging.Formatter):
    """Escapes control characters, since a record, or its traceback, may name a file or quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as `logging.Formatter` writes it, escaped."""
        return escaped_controls(super().format(record), lines=True)


def nearest_name(name: str, known: Iterable[str], otherwise: str = "there are") -> str:
    """Return "did you mean a?" if a known name is similar to an unknown one, else "there are a, b, c", at most 30."""
    names = [*known]
    near = difflib.get_close_matches(name, names, n=1)
    shown = names if len(names) <= _NAMES else [*names[:_NAMES], f"{len(names) - _NAMES:,} more"]
    return f"did you mean {near[0]}?" if near else f"{otherwise} {', '.join(shown) or 'none'}"


def indented_lines(text: str) -> str:
    """Return the text with `escaped_controls`, and each line after the first indented. A value quoted in
    a message then cannot look like another message.
    """
    first, *others = escaped_controls(text, lines=True).split("\n")
    return "\n".join([first, *(line if not line or line.startswith("  ") else f"  {line}" for line in others)])


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def unit_of_difference(unit: str) -> str:
    """Return the unit of a difference: of percentages, points, since “3 % more than 20 %” may mean 20.6 %."""
    return "points" if unit == "%" else unit


def number(value: float | int | None, digits: int = 4) -> str:
    """Return a number for people: 12,345; 3.142; 1.234e−07; a dash if it is missing or undefined."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    text = f"{value:#.{digits}g}".rstrip(".")
    return (text if abs(float(text)) < 1000 else f"{value:,.0f}").replace("-", "−")


def fixed(value: float | None, digits: int = 2) -> str:
    """Return a number with fixed decimals, for columns of figures; what rounds to 0 has no sign."""
    return "–" if value is None or math.isnan(value) else f"{value:z.{digits}f}".replace("-", "−")


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in 0..1 as a percentage."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def percentage(value: float) -> str:
    """Return a share in 0..1 with three digits and a plain space: `94.6 %`, `0.012 %`."""
    return f"{100 * value:.3g} %"


def quantity(value: float | None) -> str:
    """Return a quantity with a decimal prefix: `950`, `1.25 M`, `3.40 P`."""
    if value is None:
        return "–"
    size = 0
    while value >= 1000 and size < len("kMGTPEZY"):
        value, size = value / 1000, size + 1
    return f"{value:.3g} {'kMGTPEZY'[size - 1]}" if size else f"{value:.3g}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 sample`, `2 samples`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float | None) -> str:
    """Return a time as `0.4 s`, `12 s`, `3.5 min` or `2.1 h`."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def memory(size: int | None) -> str:
    """Return bytes in binary units."""
    if size is None:
        return "–"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def listed(names: Sequence[str]) -> str:
    """Return names as `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, kw_only=True)
class PageAmount:
    """A bar of a chart.

    low, high: the ends of its interval, if there is one. reference: whether the others are compared with it.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    reference: bool = False


@dataclass(frozen=True, kw_only=True)
class PageChart:
    """A few amounts to compare, the most important first, small enough for an asset's page.

    name: the name of the amounts, with their unit. share: whether they are numbers in 0..1, shown as percentages.
    """

    name: str
    amounts: Sequence[PageAmount]
    share: bool = False
