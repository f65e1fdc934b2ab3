"""Numbers and untrusted text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.report.text import breakable, fixed, number, percent, plural, printable, snippet


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


@given(st.text())
def test_printable_keeps_length_and_ordinary_text(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text.replace("\r\n", "\n"))
    assert printable(shown) == shown
    assert not set(shown) & set("\x00\x1b\r\u202e\u2066\ufeff")
    assert [a for a in text.replace("\r\n", "\n") if a.isalnum()] == [a for a in shown if a.isalnum()]


@given(st.text(alphabet="abc \n", max_size=60), st.integers(1, 20))
def test_snippet_accounts_for_every_character(text: str, each: int) -> None:
    part = snippet(text, each=each)
    assert len(part.start) + len(part.end) + part.left_out == len(text)
    assert text.startswith(part.start)
    assert text.endswith(part.end)
    assert max(len(part.start), len(part.end)) <= (2 * each if not part.left_out else each)


def test_a_name_may_break_after_its_underscores_and_is_escaped() -> None:
    assert breakable("a_<b>_c") == "a_<wbr>&lt;b&gt;_<wbr>c"


def test_few_digits_leave_no_point_at_the_end() -> None:
    assert (number(122.4, 3), number(12.24, 3), number(100.0, 3)) == ("122", "12.2", "100")
