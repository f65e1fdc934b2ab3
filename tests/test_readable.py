"""Numbers in sentences and tables."""

import math

import pytest

from gateau_dagster.readable import duration, fixed, memory, number, percent, plural, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (0, "0"), (12345, "12,345"), (0.0, "0.000"),
        (3.0, "3.000"), (3.14159, "3.142"), (-0.25, "−0.2500"), (123456.0, "123,456"), (1.234e-7, "1.234e−07"),
        (2.5e9, "2.500e+09"), (1000.4, "1,000"),
    ],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_fixed_percent_plural() -> None:
    assert (fixed(-0.256), fixed(None), fixed(math.nan)) == ("−0.26", "–", "–")
    assert (fixed(-0.004), fixed(-0.004, 3)) == ("0.00", "−0.004")
    assert (percent(0.1234), percent(1.0, 0), percent(None), percent(math.nan)) == (
        "12.3\u00a0%",
        "100\u00a0%",
        "–",
        "–",
    )
    assert (plural(1, "sample"), plural(0, "sample"), plural(2000, "sample")) == (
        "1 sample",
        "0 samples",
        "2,000 samples",
    )


def test_few_digits_leave_no_point_at_the_end() -> None:
    assert (number(999.7, 3), number(-999.97), number(999.4, 3)) == ("1,000", "−1,000", "999")
    assert (number(122.4, 3), number(12.24, 3), number(100.0, 3)) == ("122", "12.2", "100")


def test_quantities() -> None:
    assert [quantity(value) for value in (None, 0.0, 950.0, 1250.0, 3.4e15)] == ["–", "0", "950", "1.25 k", "3.4 P"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s"), (9.96, "10 s"), (99.0, "99 s"), (150, "2.5 min"), (9000, "2.5 h")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_memory() -> None:
    assert [memory(size) for size in (None, 5 * 2**20, 3 * 2**29)] == ["–", "5 MiB", "1.5 GiB"]
