"""Charts that the UI shows in place: small enough, whole documents, and nothing of the data acts on them."""

import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest

from gateau_dagster.report.plots.small_charts import INLINE_LIMIT, curve, histogram, shares

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
    lengths = [int(value) for value in re.findall(r"h(\d+)", paths(chart)[0])]
    assert lengths[0] == pytest.approx(3 * lengths[1], abs=3)


@pytest.mark.parametrize("letter", ["a", "語", "<&]>)'\"%#\\"])
def test_many_long_and_hostile_names_fit_and_nothing_is_lost(letter: str) -> None:
    chart = shares([(f"{number}{letter * 40}", 1.0) for number in range(60)], name="x](y)")
    shown = words(chart)
    assert shown[-1].endswith("%") or "others" in shown[0]
    assert any(re.match(r"\d+ others", word) for word in shown)


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
