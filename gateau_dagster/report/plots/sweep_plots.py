"""Plots of what alpha and the segment length change."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateau_dagster.comparison.result import AlphaSweep, Point, SegmentLengthSweep
from gateau_dagster.plotting import CHECKPOINT, INK, MUTED, PRESET_COLOURS, label, legend, new_figure

# Presets whose curves often coincide: the later one leaves gaps.
_LINES = {"official": (0, (3, 2))}


def alpha_curves(sweep: AlphaSweep) -> Figure:
    """Agreement with the configured ranking over alpha, and AUROC with a ground truth: a line for each preset."""
    measured = any(point.auroc is not None for curve in sweep.curves for point in curve.points)
    panels = _panels("α", sweep.chosen, measured=measured)
    figure, axes = new_figure("What the weight α changes", columns=len(panels), height=3.3)
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for curve in sweep.curves:
            axis.plot(
                *_known(curve.points, name), marker="o", markersize=3.5, linewidth=1.8,
                linestyle=_LINES.get(curve.preset, "-"), color=PRESET_COLOURS[curve.preset], label=curve.preset,
            )  # fmt: skip
        label(axis, x="α, weight of HMP against CAS", y=unit, title=title)
        _frame(axis, sweep.alpha)
        axis.set_xlim(-0.03, 1.03)
    _level(axes[1], sweep.chosen / max(1, sweep.samples))
    if measured:
        _level(axes[2], 0.5)
    legend(axes[0], loc="best")
    return figure


def segment_length_curves(sweep: SegmentLengthSweep) -> Figure:
    """Agreement with the ranking at the configured segment length, and AUROC with a ground truth, over the length."""
    measured = any(point.auroc is not None for point in sweep.points)
    panels = _panels("length", sweep.chosen, measured=measured)
    figure, axes = new_figure("What the segment length changes", columns=len(panels), height=3.0)
    lengths = [point.value for point in sweep.points]
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        axis.set_xscale("log", base=2)
        axis.plot(*_known(sweep.points, name), marker="o", markersize=4.5, linewidth=1.8, color=CHECKPOINT)
        axis.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axis.minorticks_off()
        label(axis, x="tokens of a segment", y=unit, title=title)
        _frame(axis, sweep.configured)
        axis.set_xlim(min(lengths) / 1.3, max(lengths) * 1.3)
    _level(axes[1], sweep.chosen / max(1, sweep.samples))
    if measured:
        _level(axes[2], 0.5)
    return figure


def _panels(parameter: str, chosen: int, *, measured: bool) -> list[tuple[str, str, str]]:
    """Field of Point, title and unit; `measured`: with a ground truth."""
    found = [
        ("spearman", f"rank correlation with this run's {parameter}", "Spearman"),
        ("overlap", f"common among the first {chosen:,}", "share"),
    ]
    return [*found, ("auroc", "finding “needs far context”", "AUROC")] if measured else found


def _known(points: Sequence[Point], name: str) -> tuple[list[float], list[float]]:
    """The values that have this figure, and the figures."""
    known = [(point.value, getattr(point, name)) for point in points if getattr(point, name) is not None]
    return [x for x, _ in known], [y for _, y in known]


def _frame(axis: Axes, configured: float) -> None:
    axis.axvline(configured, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    low = axis.get_ylim()[0]
    axis.set_ylim(min(0.0, low), 1.04)


def _level(axis: Axes, chance: float) -> None:
    axis.axhline(chance, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8}
    middle, across = 0.5, axis.get_yaxis_transform()
    axis.text(middle, chance, "chance", transform=across, ha="center", va="center", fontsize=8.5, color=MUTED, bbox=box)
