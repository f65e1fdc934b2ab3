"""Plot how far selection methods and presets agree: over all samples, by context length, on single samples."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gateau_dagster.comparison.result import Bucket, MethodComparison, spearman_matrix
from gateau_dagster.plotting import (
    FAINT,
    GRID,
    INK,
    MUTED,
    ON_LIGHT,
    PRESET_COLOURS,
    SELECTED,
    label,
    legend,
    new_figure,
    say,
    shortened,
)

BUCKETS = ("#56a5d8", "#d08700", "#a5568f", "#7d8d9c")
_MARKERS = ("o", "s", "D", "^")
EDGES = (-1.05, 1.05)
"""Limit of an axis of correlations."""


def similar_first(matrix: NDArray[np.float64]) -> list[int]:
    """Return an order of the rows of a correlation matrix [M, M] that puts similar rows together; undefined rows come
    last.

    It is the order of leaves of the average-linkage tree over 1 - rho, with neighbours as close as the tree allows.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage  # slow to import
    from scipy.spatial.distance import squareform

    # The 1 on the diagonal does not count.
    defined = [row for row in range(len(matrix)) if np.isfinite(np.delete(matrix[row], row)).any()]
    rest = [row for row in range(len(matrix)) if row not in defined]
    if len(defined) < 3:
        return [*defined, *rest]
    distances = 1.0 - np.nan_to_num(matrix[np.ix_(defined, defined)], nan=0.0)
    np.fill_diagonal(distances, 0.0)
    tree = linkage(squareform(np.maximum(distances, 0.0), checks=False), "average", optimal_ordering=True)
    return [defined[leaf] for leaf in leaves_list(tree)] + rest


def method_correlations(comparison: MethodComparison) -> Figure:
    """Draw Spearman's rho of each pair of methods as a matrix [M, M], with similar methods together."""
    matrix = spearman_matrix(comparison.names, comparison.pairs)
    order = similar_first(matrix)
    count, values = len(order), matrix[np.ix_(order, order)]
    title = "Do the methods put the samples in the same order?"
    figure, (axis,) = new_figure(title, height=2.0 + 0.37 * count)
    shown = values.copy()
    np.fill_diagonal(shown, np.nan)
    # The colours stop short of their dark ends, so that black figures stay readable on all of them.
    _cells(axis, shown, colours="RdBu", low=-1.6, high=1.6)
    for row, column in np.ndindex(values.shape):
        if row == column:
            continue
        value = values[row, column]
        text = "–" if np.isnan(value) else f"{value:z.2f}".replace("-", "−")
        axis.text(column, row, text, ha="center", va="center", fontsize=9, color=MUTED if np.isnan(value) else ON_LIGHT)
    _name_columns(axis, comparison, order)
    axis.set_yticks(range(count), [shortened(comparison.names[row]) for row in order])
    _mark_chosen(axis.get_yticklabels(), comparison, order)
    return figure


def agreement_by_length(comparison: MethodComparison, reference: str) -> Figure:
    """Draw Spearman's rho of every other method with `reference`, one mark per length bucket with samples."""
    names = [name for name in comparison.names if name != reference][::-1]
    figure, (axis,) = new_figure(
        f"Rank correlation with {shortened(reference)}, by length of the context", height=1.9 + 0.36 * len(names)
    )
    buckets = [bucket for bucket in comparison.buckets if bucket.samples]
    if not buckets or not names:
        say(axis, "there is nothing to compare")
        return figure
    found = np.array([[_with(bucket, reference, name) for name in names] for bucket in buckets])  # [buckets, methods]
    for row, values in enumerate(found.T):
        if not np.isfinite(values).any():
            axis.text(0.02, row, "not defined", va="center", fontsize=8.5, color=MUTED)
    for number, bucket in enumerate(buckets):
        # Draw the marks side by side, so that equal values do not hide one another.
        offset = 0.2 * ((len(buckets) - 1) / 2 - number)
        axis.scatter(
            found[number], np.arange(len(names)) + offset, label=f"{bucket_name(bucket)} ({bucket.samples:,})",
            s=46, marker=_MARKERS[number % 4], color=BUCKETS[number % 4], edgecolors="white", linewidths=0.6, zorder=2,
        )  # fmt: skip
    axis.hlines(np.arange(len(names) - 1) + 0.5, *EDGES, color=GRID, linewidth=0.8, zorder=0)
    axis.grid(False, axis="y")
    axis.axvline(0, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
    axis.set_xlim(min(-0.1, np.nanmin([*found.ravel(), 0]) - 0.05), EDGES[1])
    axis.set_ylim(-0.6, len(names) - 0.4)
    axis.set_yticks(range(len(names)), [shortened(name) for name in names])
    axis.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=INK)
    label(axis, x="Spearman's rank correlation: 1 is the same order, 0 no relation", y="")
    legend(axis, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="context tokens\n(samples)", title_fontsize=8.5)
    return figure


def disputed_ranks(comparison: MethodComparison) -> Figure:
    """Draw each method's ranks of the most disputed samples: one row per sample, cells as shares of scored samples."""
    order = similar_first(spearman_matrix(comparison.names, comparison.pairs))
    scored = np.array([comparison.methods[row].scored for row in order])
    ranks = np.array(
        [[np.nan if one.ranks[row] is None else one.ranks[row] for row in order] for one in comparison.disputed],
        dtype=np.float64,
    ).reshape(-1, len(order))
    shares = ranks / np.maximum(scored, 1)
    title = "Where each method ranks the most disputed samples"
    figure, (axis,) = new_figure(title, height=2.0 + 0.31 * len(shares))
    if not len(shares):
        say(axis, "the methods agree on every sample")
        return figure
    _cells(axis, 1 - 2 * shares, colours="RdBu", low=-1.6, high=1.6)
    for row, column in np.ndindex(shares.shape):
        share = float(shares[row, column])
        text = "–" if np.isnan(share) else share_text(share)
        axis.text(
            column, row, text, ha="center", va="center", fontsize=8.5, color=MUTED if np.isnan(share) else ON_LIGHT
        )
    _name_columns(axis, comparison, order)
    axis.set_yticks(range(len(shares)), [f"sample {number}" for number in range(1, len(shares) + 1)])
    return figure


def share_text(share: float) -> str:
    """Return a position in the order as a percentage; no sample is rounded to position 0."""
    return f"{100 * share:.0f} %" if share >= 0.01 else "<1 %"


def bucket_name(bucket: Bucket) -> str:
    """Return a bucket's name, such as `0–4k`, `4–8k`, `8k+`."""
    low = _thousands(bucket.low)
    return f"{low}+" if bucket.high is None else f"{low.removesuffix('k')}–{_thousands(bucket.high)}"


def _thousands(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens and tokens % 1000 == 0 else f"{tokens:,}"


def _with(bucket: Bucket, one: str, two: str) -> float:
    pair = next(pair for pair in bucket.pairs if {pair.first, pair.second} == {one, two})
    return float("nan") if pair.spearman is None else pair.spearman


def _cells(axis: Axes, values: NDArray[np.float64], *, colours: str, low: float, high: float) -> None:
    axis.set_facecolor(FAINT)
    axis.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, aspect="auto")
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xticks(np.arange(-0.5, values.shape[1]), minor=True)
    axis.set_yticks(np.arange(-0.5, values.shape[0]), minor=True)
    axis.grid(True, which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="both", length=0, labelsize=9.5, labelcolor=INK)


def _name_columns(axis: Axes, comparison: MethodComparison, order: Sequence[int]) -> None:
    axis.set_xticks(
        range(len(order)), [shortened(comparison.names[row]) for row in order], rotation=40, ha="right",
        rotation_mode="anchor",
    )  # fmt: skip
    _mark_chosen(axis.get_xticklabels(), comparison, order)


def _mark_chosen(labels: Sequence, comparison: MethodComparison, order: Sequence[int]) -> None:
    for text, row in zip(labels, order, strict=True):
        if comparison.names[row] == comparison.selected_by:
            text.set(color=SELECTED, fontweight="bold")


def preset_agreement(
    names: tuple[str, ...], *, spearman: NDArray[np.float64], overlap: NDArray[np.float64], chosen: int
) -> Figure:
    """Draw two matrices [P, P] over the presets: rank correlation of scores, and share of common samples at the top.

    NaN (a preset with one score for all samples) is left blank.
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
        ink = INK if np.isnan(value) else ON_LIGHT
        axis.text(column, row, text, ha="center", va="center", fontsize=10.5, color=ink)


def auroc_bars(auroc: Mapping[str, float]) -> Figure:
    """Draw the AUROC of "needs far context" per preset, against chance (0.5)."""
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
