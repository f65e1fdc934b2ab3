"""Plots that set the presets side by side."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gateau_dagster.plotting import INK, MUTED, PRESET_COLOURS, label, new_figure


def preset_agreement(
    names: tuple[str, ...], *, spearman: NDArray[np.float64], overlap: NDArray[np.float64], chosen: int
) -> Figure:
    """Two matrices [P, P] over the presets: rank correlation of their scores, and share of common samples at the top.

    NaN (a preset that gives one score to all) is left blank.
    """
    figure, (left, right) = new_figure("Do the presets agree?", columns=2, width=8.2, height=3.5)
    _matrix(left, names, spearman, low=-1.0, colours="RdBu", unit="")
    left.set_title("rank correlation (Spearman), −1 to 1", fontsize=10, color=INK, loc="left")
    _matrix(right, names, 100 * overlap, low=0.0, colours="Blues", unit=" %")
    right.set_title(f"common samples among the first {chosen:,}", fontsize=10, color=INK, loc="left")
    return figure


def _matrix(
    axis: Axes, names: tuple[str, ...], values: NDArray[np.float64], *, low: float, colours: str, unit: str
) -> None:
    high = 100.0 if unit else 1.0
    # The colours stop short of their dark ends, so that black figures stay readable on all of them.
    axis.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low * 1.6, vmax=high * 1.6)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0, labelsize=10, labelcolor=INK)
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        text = "undefined" if np.isnan(value) else f"{value:.0f}{unit}" if unit else f"{value:.2f}".replace("-", "−")
        axis.text(column, row, text, ha="center", va="center", fontsize=10.5, color=INK)


def auroc_bars(auroc: Mapping[str, float]) -> Figure:
    """AUROC of "needs far context" per preset, against chance (0.5)."""
    figure, (axis,) = new_figure("How well each preset finds the samples that need far context", width=8.2, height=2.6)
    names = list(auroc)[::-1]
    axis.barh(
        names, [auroc[name] for name in names], color=[PRESET_COLOURS.get(name, MUTED) for name in names], height=0.62
    )
    for row, name in enumerate(names):
        axis.text(auroc[name] + 0.012, row, f"{auroc[name]:.3f}", va="center", fontsize=10, color=INK)
    axis.axvline(0.5, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
    axis.text(
        0.5,
        len(names) - 0.42,
        "chance",
        ha="center",
        va="bottom",
        fontsize=8.5,
        color=MUTED,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axis.set_xlim(0, 1.12)
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.set_ylim(-0.6, len(names) - 0.1)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", labelsize=10, labelcolor=INK, length=0)
    label(axis, x="AUROC (0.5 is chance, 1 is perfect)", y="")
    return figure
