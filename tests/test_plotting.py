"""Figures: their colours, values on axes, and the ways out as bytes."""

import base64
import itertools
import math
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gateau_dagster import plotting as style
from gateau_dagster.plotting import (
    SVG_LIMIT,
    as_markdown_image,
    edges,
    finite,
    finite_pairs,
    log_edges,
    new_figure,
    shortened,
    to_svg,
)


def _luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))


def test_text_reads_on_white() -> None:
    for colour in (style.INK, style.MUTED):
        assert 1.05 / (_luminance(colour) + 0.05) >= 4.5


def test_colours_that_meet_in_a_plot_differ_without_hue_too() -> None:
    for one, other in ((style.FAR, style.OTHER), (style.BASE, style.CHECKPOINT), (style.SELECTED, style.ALL)):
        light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 1.5


def test_presets_have_colours_of_their_own() -> None:
    for one, other in itertools.combinations(style.PRESET_COLOURS.values(), 2):
        assert np.abs(np.subtract(to_rgb(one), to_rgb(other))).max() > 0.25


_FRAME = pl.DataFrame({"x": [1.0, None, math.nan, math.inf, 5.0], "y": [1.0, 2.0, 3.0, 4.0, None]})


def test_only_finite_values_are_drawn() -> None:
    assert finite(_FRAME, "x").tolist() == [1.0, 5.0]
    assert finite_pairs(_FRAME, "x", "y").rows() == [(1.0, 1.0)]
    assert finite(pl.DataFrame({"x": [None, None]}), "x").size == 0
    assert finite(pl.DataFrame({"x": [1, 2]}), "x").dtype == np.float64


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=50))
def test_edges_rise_and_cover_every_value(values: list[float]) -> None:
    bins = edges(np.array(values))
    assert (np.diff(bins) > 0).all()
    counts, _ = np.histogram(values, bins)
    assert counts.sum() == len(values)


@pytest.mark.parametrize("span", [1e-12, 1e-9, 1.0, 1e9])
def test_a_narrow_span_still_gets_many_bins(span: float) -> None:
    values = 1e-5 + span * np.linspace(0, 1, 1000)
    assert len(edges(values)) == 21
    assert len(edges(values, most=8)) == 9


def test_equal_values_get_one_bin_and_none_a_dummy() -> None:
    assert len(edges(np.array([0.3, 0.3]))) == 2
    assert edges(np.array([])).tolist() == [0.0, 1.0]


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50))
def test_log_edges_cover_every_value(values: list[int]) -> None:
    counted = np.maximum(np.array(values, dtype=float), 1.0)
    assert np.histogram(counted, log_edges(np.array(values, dtype=float)))[0].sum() == len(values)


def test_log_edges_are_equally_wide_in_ratio_and_start_at_one() -> None:
    bins = log_edges(np.array([0.0, 3.0, 1024.0]))
    assert bins[0] == 1.0
    assert bins[-1] == pytest.approx(1024)
    np.testing.assert_allclose(np.diff(np.log(bins)), np.log(1024) / (len(bins) - 1))


def _figure() -> Figure:
    figure = Figure(figsize=(6, 4))
    figure.subplots().set_title("title")
    return figure


def test_svg_is_the_same_every_time_and_bears_no_date() -> None:
    first, second = to_svg(_figure()), to_svg(_figure())
    assert first == second
    assert first.startswith(b"<?xml")
    assert b"<dc:date>" not in first


def test_words_of_an_svg_are_text_whatever_stands_in_them() -> None:
    name = "a<b>&\x00\x0b\ufffe\x1b语$x"
    figure, (axis,) = new_figure("title")
    axis.set_yticks([0], [shortened(name)])
    root = ElementTree.fromstring(to_svg(figure))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "title" in words and "a<b>&\ufffd\ufffd\ufffd\ufffd语$x" in words


@pytest.mark.filterwarnings("error")
def test_chinese_and_japanese_names_are_text_with_room_and_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    figure, (axis,) = new_figure("长文本")
    axis.set_yticks([0, 1], ["日本語" * 4, "a" * 12])
    text = to_svg(figure).decode()
    assert "长文本" in text and "日本語" * 4 in text and len(shortened("日本語" * 9)) == 13
    wide, narrow = (label.get_window_extent().width for label in axis.get_yticklabels())
    assert wide > 1.5 * narrow and not caplog.records


def test_markdown_image_gives_the_svg_back_and_its_text_cannot_break_out() -> None:
    svg = to_svg(_figure())
    text = as_markdown_image(svg, alt="a](http://x)\n[b")
    assert text.startswith("![ahttp://xb](data:image/svg+xml;base64,")
    assert base64.b64decode(text.split(",")[1][:-1]) == svg
    assert as_markdown_image(bytes(SVG_LIMIT + 1), alt="a").startswith("a: the figure has 200,001 bytes, more than")
