"""Charts that the UI shows in place: small enough, whole documents, and nothing of the data acts on them."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

from gateau_dagster.readable import PageAmount, PageChart
from gateau_dagster.small_charts import INLINE_LIMIT, bars, curve, histogram, shares

_TEXT = "{http://www.w3.org/2000/svg}text"


def document(markdown: str) -> ElementTree.Element:
    assert len(markdown) < INLINE_LIMIT
    found = re.fullmatch(r"!\[[^\]]*\]\(<data:image/svg\+xml,([^<>\n\\&]*)>\)", markdown)
    assert found, markdown
    return ElementTree.fromstring(unquote(found.group(1)))


def words(markdown: str) -> list[str]:
    return [element.text or "" for element in document(markdown).iter(_TEXT)]


def numbers(path: str) -> list[int]:
    return [int(value) for value in re.findall(r"-?\d+", path)]


def paths(markdown: str) -> list[str]:
    return [element.attrib["d"] for element in document(markdown) if element.tag.endswith("path")]


def chart_of(*amounts: tuple[str, float], **options: bool) -> PageChart:
    return PageChart(
        name="quiz (%)", amounts=[PageAmount(name=name, value=value) for name, value in amounts], **options
    )


def spans(markdown: str, path: int = 0) -> list[tuple[int, int]]:
    """Start and end of each bar."""
    found = re.findall(r"M(\d+) \d+H(\d+)v10H(\d+)", paths(markdown)[path])
    assert all(start == back for start, _, back in found)
    return [(int(start), int(end)) for start, end, _ in found]


def test_a_histogram_is_as_high_as_its_values_are_frequent() -> None:
    values = np.array([0.0] * 10 + [1.0] * 5 + [np.nan, np.inf])
    (steps,) = paths(histogram(values, name="score"))
    heights = [72 - int(value) for value in re.findall(r"V(\d+)H", steps)]
    assert heights[0] == 72 and heights[-1] == 36 and set(heights[1:-1]) == {0}
    assert words(histogram(values, name="score")) == ["0.00", "1.00"]


@pytest.mark.parametrize(("cut", "place"), [(0.25, 90), (0.75, 270)])
def test_the_cut_stands_at_its_place(cut: float, place: int) -> None:
    chart = histogram(np.linspace(0, 1, 100), name="score", cut=cut, cut_name="lowest selected")
    assert numbers(paths(chart)[1])[0] == place
    assert f"lowest selected {cut:.3f}" in words(chart)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 123456.789, 1e300])
def test_histograms_of_every_scale_fit(scale: float) -> None:
    values = np.random.default_rng(0).normal(0, scale, 10_000)
    assert words(histogram(values, name="perplexity", cut=float(values[0]), cut_name="lowest selected"))
    assert words(histogram(np.full(3, scale), name="perplexity"))


def test_shares_are_of_the_sum_and_the_largest_come_first() -> None:
    chart = shares([("b", 1), ("a", 3)], name="selected samples")
    assert words(chart) == ["a 75\u00a0%", "b 25\u00a0%"]
    (start, most), (also, least) = spans(chart)
    assert start == also and most - start == pytest.approx(3 * (least - also), abs=3)


@pytest.mark.parametrize("letter", ["a", "語", "<&]>)'\"%#\\"])
def test_many_long_and_hostile_names_fit_and_nothing_is_lost(letter: str) -> None:
    chart = shares([(f"{number}{letter * 40}", 1.0) for number in range(60)], name="x](y)")
    shown = words(chart)
    assert shown[-1].endswith("%") or "others" in shown[0]
    assert any(re.match(r"\d+ others", word) for word in shown)


def test_bars_are_as_long_as_their_amounts_and_keep_their_order() -> None:
    chart = bars(chart_of(("b", 1.0), ("a", 4.0)))
    assert words(chart) == ["b 1.00", "a 4.00"]
    (_, short), (start, long) = spans(chart)
    assert (start, long) == (190, 360) and short - start == pytest.approx((long - start) / 4, abs=1)
    assert words(bars(chart_of(("b", 0.25), share=True))) == ["b 25.0\u00a0%"]


def test_bars_below_zero_go_to_the_left_of_those_above() -> None:
    below, above = spans(bars(chart_of(("below", -0.5), ("above", 0.5))))
    assert below == (190, 275) and above == (275, 360)


def test_intervals_lie_across_the_ends_of_their_bars_and_the_reference_has_a_colour_of_its_own() -> None:
    amounts = [
        PageAmount(name="base", value=40.0, reference=True),
        PageAmount(name="chosen", value=50.0, low=30.0, high=80.0),
    ]
    chart = bars(PageChart(name="quiz", amounts=amounts))
    assert len(spans(chart, 0)) == len(spans(chart, 1)) == 1  # two colours
    (low, row, high) = numbers(paths(chart)[2])
    assert high == 360 and row == 17 + 8 and low < spans(chart, 1)[0][1] < high


@pytest.mark.parametrize("letter", ["a", "語", "<&]>)'\"%#\\"])
def test_bars_that_do_not_fit_are_counted(letter: str) -> None:
    amounts = [
        PageAmount(name=f"{number}{letter * 40}", value=1e-9 * number, low=-1e-9, high=1e-7, reference=number == 0)
        for number in range(60)
    ]
    chart = bars(PageChart(name="x](y)", amounts=amounts))
    *shown, last = words(chart)
    assert shown and last == f"and {60 - len(shown)} more"


def test_names_that_differ_at_their_ends_are_told_apart() -> None:
    first, second = words(bars(chart_of(("delta_perplexity-0.1", 1), ("delta_perplexity-0.3", 1))))
    assert first != second


def test_what_is_not_finite_has_no_bar() -> None:
    assert words(bars(chart_of(("a", float("inf")), ("b", 0.0)))) == ["b 0.00"]
    assert bars(chart_of(("a", float("nan")))) == "no quiz (%) is known"


def test_a_curve_starts_high_where_its_first_value_is() -> None:
    (line,) = paths(curve([3.0, 2.0, 1.0], name="loss"))
    heights = numbers(line)[1::2]
    assert heights == sorted(heights) and heights[0] < 5
    assert words(curve([1e-5 * step for step in range(10_000)], name="loss"))


def test_what_is_not_known_is_said() -> None:
    assert histogram(np.array([np.nan]), name="score") == "no score is known"
    assert shares([], name="source") == "there is no source"
    assert curve([float("nan")], name="loss") == "no loss is known"
    assert curve([2.5], name="loss").startswith("loss 2.5")
