"""Plots of agreement and of what methods prefer."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.result import AlphaCurve, AlphaSweep, MethodComparison, Point, SegmentLengthSweep
from gateau_dagster.plots.agreement_plots import (
    agreement_by_length,
    auroc_bars,
    bucket_name,
    disputed_ranks,
    method_correlations,
    preset_agreement,
    share_text,
    similar_first,
)
from gateau_dagster.plots.score_plots import SOURCES, alpha_curves, method_profiles, segment_length_curves
from tests.comparison.frames import NAMES, described, frame


@pytest.fixture(scope="module")
def comparison() -> MethodComparison:
    return compare_methods(frame(), described(*NAMES), chosen=6, selected_by="a")


def _texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_like_rows_stand_together_and_undefined_ones_last() -> None:
    values = np.array(
        [
            [1.0, np.nan, 0.1, 0.9, 0.0],
            [np.nan, 1.0, np.nan, np.nan, np.nan],
            [0.1, np.nan, 1.0, 0.0, 0.8],
            [0.9, np.nan, 0.0, 1.0, 0.1],
            [0.0, np.nan, 0.8, 0.1, 1.0],
        ]
    )
    order = similar_first(values)
    assert order[-1] == 1
    assert abs(order.index(0) - order.index(3)) == 1
    assert abs(order.index(2) - order.index(4)) == 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_order_of_few_rows_holds_each_once(count: int) -> None:
    assert sorted(similar_first(np.full((count, count), np.nan))) == list(range(count))
    assert sorted(similar_first(np.full((count, count), 0.5))) == list(range(count))


def test_the_matrix_shows_every_correlation_in_its_cell(comparison: MethodComparison) -> None:
    figure = method_correlations(comparison)
    axis = figure.axes[0]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [label.get_text() for label in axis.get_xticklabels()]
    assert sorted(names) == sorted(NAMES)
    expected = {frozenset((pair.first, pair.second)): pair.spearman for pair in comparison.pairs}
    cells = {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axis.texts}
    assert len(cells) == 20
    for (row, column), text in cells.items():
        value = expected[frozenset((names[row], names[column]))]
        assert text == ("–" if value is None else f"{value:z.2f}".replace("-", "−"))


def test_the_profile_has_a_row_for_all_samples_and_each_method(comparison: MethodComparison) -> None:
    axes = method_profiles(comparison).axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["all samples", *NAMES]
    dots = [line.get_xdata() for line in axes[0].lines if line.get_marker() == "o"]
    expected = [comparison.everything, *(facts.best for facts in comparison.methods if facts.scored)]
    assert [float(np.ravel(dot)[0]) for dot in dots] == [part.context_tokens.median for part in expected]  # type: ignore[union-attr]
    assert [text.get_text() for text in axes[0].texts] == ["no sample"]
    widths = [bar.get_width() for bar in axes[3].patches]  # type: ignore[attr-defined]
    assert widths[: len(NAMES) + 1] == [
        comparison.everything.sources[0],
        *(facts.best.sources[0] for facts in comparison.methods),
    ]
    assert len(SOURCES) == len(set(SOURCES))


def test_agreement_by_length_has_a_mark_for_each_bucket_that_holds_samples() -> None:
    comparison = compare_methods(frame(longest=7000), described(*NAMES), chosen=6, selected_by="a")
    figure = agreement_by_length(comparison, "a")
    marks = figure.axes[0].collections
    scatters = [mark for mark in marks if mark.get_label() and not str(mark.get_label()).startswith("_")]
    assert [mark.get_label() for mark in scatters] == [
        f"{bucket_name(bucket)} ({bucket.samples})" for bucket in comparison.buckets[:2]
    ]
    assert comparison.buckets[2].samples == 0
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == list(NAMES[:0:-1])
    pair = next(pair for pair in comparison.buckets[0].pairs if {pair.first, pair.second} == {"a", "c"})
    shown = np.ma.filled(scatters[0].get_offsets(), np.nan)[names.index("c"), 0]  # type: ignore[attr-defined]
    assert shown == pytest.approx(pair.spearman)
    assert _texts(figure).count("not defined") == 2


def test_disputed_samples_show_shares_of_what_each_method_scores(comparison: MethodComparison) -> None:
    figure = disputed_ranks(comparison)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    texts = np.array(_texts(figure)).reshape(len(comparison.disputed), len(NAMES))
    for row, one in enumerate(comparison.disputed):
        for facts, rank in zip(comparison.methods, one.ranks, strict=True):
            shown = texts[row, labels.index(facts.name)]
            assert shown == ("–" if rank is None else share_text(rank / facts.scored))
    assert share_text(0.004) == "<1 %"
    assert share_text(1.0) == "100 %"


def test_nothing_to_show_is_said() -> None:
    alone = compare_methods(frame(), described("a"), chosen=6)
    assert _texts(agreement_by_length(alone, "a")) == ["there is nothing to compare"]
    assert _texts(disputed_ranks(alone)) == ["the methods agree on every sample"]
    nothing = compare_methods(frame(), described("nothing"), chosen=6)
    assert "no sample" in _texts(method_profiles(nothing))


_NAMES = ("paper", "official", "robust")


def test_matrices_show_their_values_and_say_undefined() -> None:
    rho = np.array([[1.0, -0.25, np.nan], [-0.25, 1.0, 0.5], [np.nan, 0.5, 1.0]])
    left, right = preset_agreement(_NAMES, spearman=rho, overlap=np.full((3, 3), 0.5), chosen=1200).axes
    assert [text.get_text() for text in left.texts][:3] == ["1.00", "−0.25", "undefined"]
    assert {text.get_text() for text in right.texts} == {"50 %"}
    assert "1,200" in right.get_title(loc="left")


def test_bars_are_in_order_with_their_values() -> None:
    axis = auroc_bars({"paper": 0.43, "official": 0.5, "robust": 0.98}).axes[0]
    assert [bar.get_width() for bar in axis.patches] == [0.98, 0.5, 0.43]  # type: ignore[attr-defined]
    assert [text.get_text() for text in axis.texts] == ["0.980", "0.500", "0.430", "chance"]


def _sweep(auroc: float | None) -> AlphaSweep:
    def points(start: int) -> Iterator[Point]:
        for alpha in (0.0, 0.5, 1.0):
            spearman = None if alpha == 0 else alpha - start
            yield Point(value=alpha, spearman=spearman, overlap=alpha / 2, auroc=auroc)

    curves = tuple(AlphaCurve(preset=preset, points=tuple(points(start))) for start, preset in enumerate(_NAMES))
    return AlphaSweep(preset="robust", alpha=0.8, samples=50, chosen=10, curves=curves)


def _numbers(values: object) -> list[float]:
    return [float(value) for value in np.ravel(values)]  # type: ignore[call-overload]


def test_a_line_for_each_preset_with_chance_and_the_configured_alpha() -> None:
    axes = alpha_curves(_sweep(0.7)).axes
    assert len(axes) == 3 and len(alpha_curves(_sweep(None)).axes) == 2, "without a ground truth there are two"
    lines, overlaps = ({str(line.get_label()): line for line in axis.lines} for axis in axes[:2])
    assert _numbers(lines["official"].get_xdata()) == [0.5, 1.0], "what is not defined has no point"
    assert _numbers(lines["official"].get_ydata()) == [-0.5, 0.0]
    assert axes[0].get_ylim()[0] < -1.5
    assert _numbers(overlaps["paper"].get_ydata()) == [0.0, 0.25, 0.5]
    assert 0.2 in [values[0] for line in axes[1].lines if len({*(values := _numbers(line.get_ydata()))}) == 1]
    assert len([line for line in axes[0].lines if {*_numbers(line.get_xdata())} == {0.8}]) == 1


_LENGTHS = SegmentLengthSweep(
    configured=128,
    samples=50,
    chosen=10,
    points=(
        Point(value=32, spearman=None, overlap=0.1, auroc=0.6),
        Point(value=64, spearman=-0.5, overlap=0.6, auroc=0.7),
        Point(value=128, spearman=1.0, overlap=1.0, auroc=0.9),
    ),
    single=(0, 0, 3),
)


def test_the_segment_lengths_stand_on_the_axis_and_this_run_s_is_marked() -> None:
    axes = segment_length_curves(_LENGTHS).axes
    assert len(axes) == 3
    for axis in axes:
        assert [text.get_text() for text in axis.get_xticklabels()] == ["32", "64", "128"]
        assert [line for line in axis.lines if set(_numbers(line.get_xdata())) == {128.0}]
    assert _numbers(axes[0].lines[0].get_xdata()) == [64.0, 128.0], "what is not defined has no point"
    assert _numbers(axes[0].lines[0].get_ydata()) == [-0.5, 1.0]
    assert axes[0].get_ylim()[0] < -0.5
    assert 0.2 in _numbers(axes[1].lines[-1].get_ydata()), "chance: 10 of 50"
    plain = replace(_LENGTHS, points=tuple(replace(point, auroc=None) for point in _LENGTHS.points))
    assert len(segment_length_curves(plain).axes) == 2
