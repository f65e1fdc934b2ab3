"""Numbers and untrusted text, made fit to read. HTML escaping itself is the template's, which escapes everything."""

import math
import re
from dataclasses import dataclass

from markupsafe import Markup

# Control characters (but tab and line feed), and those that turn the direction of the text around them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """The two ends of a text; `end` is empty when `start` is all of it. `left_out`: characters between them."""

    start: str
    end: str
    left_out: int


def printable(text: str) -> str:
    """The text with each invisible or direction-changing character shown as the replacement character."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def snippet(text: str, *, each: int = 700) -> Snippet:
    """At most `each` characters of either end of `text`."""
    if len(text) <= 2 * each:
        return Snippet(start=printable(text), end="", left_out=0)
    return Snippet(start=printable(text[:each]), end=printable(text[-each:]), left_out=len(text) - 2 * each)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number as people write it: 12,345; 3.142; 1.234e−07; a dash for what is missing or undefined."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}".replace("-", "−")
    return (
        f"{value:#.{digits}g}".rstrip(".").replace("-", "−") if abs(value) < 1000 else f"{value:,.0f}".replace("-", "−")
    )


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with a fixed count of decimals, for columns of figures of one size; what rounds to 0 has no sign."""
    return "–" if value is None or math.isnan(value) else f"{value:z.{digits}f}".replace("-", "−")


def percent(value: float | None, digits: int = 1) -> str:
    """A share in 0..1 as a percentage."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def breakable(name: str) -> Markup:
    """A name that may break after each `_`: HTML, escaped."""
    return Markup("_<wbr>").join(name.split("_"))


def plural(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
