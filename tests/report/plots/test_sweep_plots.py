"""The curves go through the points."""

from dataclasses import replace

import numpy as np

from gateau_dagster.comparison.result import AlphaCurve, AlphaSweep, Point, SegmentLengthSweep
from gateau_dagster.report.plots import alpha_curves, segment_length_curves


def _sweep(auroc: float | None) -> AlphaSweep:
    curves = tuple(
        AlphaCurve(
            preset=preset,
            points=tuple(
                Point(value=alpha, spearman=None if alpha == 0 else alpha - start, overlap=alpha / 2, auroc=auroc)
                for alpha in (0.0, 0.5, 1.0)
            ),
        )
        for start, preset in enumerate(("paper", "official", "robust"))
    )
    return AlphaSweep(preset="robust", alpha=0.8, samples=50, chosen=10, curves=curves)


def _numbers(values: object) -> list[float]:
    return [float(value) for value in np.ravel(values)]  # type: ignore[call-overload]


def test_a_line_for_each_preset_through_what_is_defined() -> None:
    axes = alpha_curves(_sweep(0.7)).axes
    assert len(axes) == 3
    lines = {str(line.get_label()): line for line in axes[0].lines}
    assert _numbers(lines["official"].get_xdata()) == [0.5, 1.0]
    assert _numbers(lines["official"].get_ydata()) == [-0.5, 0.0]
    assert axes[0].get_ylim()[0] < -1.5
    overlap = next(line for line in axes[1].lines if line.get_label() == "paper")
    assert _numbers(overlap.get_ydata()) == [0.0, 0.25, 0.5]


def test_chance_and_the_configured_alpha_are_marked() -> None:
    axes = alpha_curves(_sweep(0.7)).axes
    assert [[text.get_text() for text in axis.texts] for axis in axes] == [[], ["chance"], ["chance"]]
    flat = [values[0] for line in axes[1].lines if len(set(values := _numbers(line.get_ydata()))) == 1]
    assert 0.2 in flat
    upright = [line for line in axes[0].lines if set(_numbers(line.get_xdata())) == {0.8}]
    assert len(upright) == 1


def test_without_a_ground_truth_there_are_two_panels() -> None:
    assert len(alpha_curves(_sweep(None)).axes) == 2


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
