"""Plot of what alpha changes."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateau_dagster.comparison.sweep_results import AlphaSweep
from gateau_dagster.report.plots.style import INK, MUTED, PRESET_COLOURS, label, legend, new_figure

# Presets whose curves often coincide: the later one leaves gaps.
_LINES = {"official": (0, (3, 2))}


def alpha_curves(sweep: AlphaSweep) -> Figure:
    """Agreement with the configured ranking over alpha, and AUROC with a ground truth: a line for each preset."""
    panels = [
        ("spearman", "rank correlation with this run's α", "Spearman"),
        ("overlap", f"common among the first {sweep.chosen:,}", "share"),
    ]
    if any(point.auroc is not None for curve in sweep.curves for point in curve.points):
        panels.append(("auroc", "finding “needs far context”", "AUROC"))
    figure, axes = new_figure("What the weight α changes", columns=len(panels), height=3.3)
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for curve in sweep.curves:
            points = [(point.value, getattr(point, name)) for point in curve.points]
            known = [(x, y) for x, y in points if y is not None]
            axis.plot(
                [x for x, _ in known], [y for _, y in known], marker="o", markersize=3.5, linewidth=1.8,
                linestyle=_LINES.get(curve.preset, "-"), color=PRESET_COLOURS[curve.preset], label=curve.preset,
            )  # fmt: skip
        label(axis, x="α, weight of HMP against CAS", y=unit, title=title)
        _frame(axis, sweep)
    _level(axes[1], sweep.chosen / max(1, sweep.samples))
    if len(panels) == 3:
        _level(axes[2], 0.5)
    legend(axes[0], loc="best")
    return figure


def _frame(axis: Axes, sweep: AlphaSweep) -> None:
    axis.axvline(sweep.alpha, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
    low = axis.get_ylim()[0]
    axis.set_ylim(min(0.0, low), 1.04)
    axis.set_xlim(-0.03, 1.03)


def _level(axis: Axes, chance: float) -> None:
    axis.axhline(chance, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8}
    axis.text(0.5, chance, "chance", ha="center", va="center", fontsize=8.5, color=MUTED, bbox=box)
