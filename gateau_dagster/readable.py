"""Numbers as people write them, for sentences and tables."""

import math


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
    text = f"{value:#.{digits}g}".rstrip(".")
    return (text if abs(float(text)) < 1000 else f"{value:,.0f}").replace("-", "−")


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with a fixed count of decimals, for columns of figures of one size; what rounds to 0 has no sign."""
    return "–" if value is None or math.isnan(value) else f"{value:z.{digits}f}".replace("-", "−")


def percent(value: float | None, digits: int = 1) -> str:
    """A share in 0..1 as a percentage."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.{digits}f}\u00a0%"


def percentage(value: float) -> str:
    """A share in 0..1 to three digits, with a plain space: `94.6 %`, `0.012 %`."""
    return f"{100 * value:.3g} %"


def plural(count: int, noun: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
