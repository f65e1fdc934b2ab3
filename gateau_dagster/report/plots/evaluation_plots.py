"""Plots that compare the checkpoint with its base model."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gateau_dagster.plotting import BASE, CHECKPOINT, INK, label, legend, new_figure, say

MODELS = (("base", BASE), ("checkpoint", CHECKPOINT))


def heldout_bars(heldout: pl.DataFrame) -> Figure:
    """Response perplexity by context length, base beside checkpoint. `heldout`: the HELDOUT table."""
    figure, (axis,) = new_figure("Held-out samples: perplexity of the response", height=3.4)
    buckets = heldout["bucket"].unique(maintain_order=True).to_list()
    if not buckets:
        say(axis, "no held-out sample could be scored")
        return figure
    for offset, (model, colour) in zip((-0.2, 0.2), MODELS, strict=True):
        rows = heldout.filter(pl.col("model") == model)
        places = [buckets.index(bucket) + offset for bucket in rows["bucket"]]
        bars = axis.bar(places, rows["perplexity"], 0.38, color=colour, label=model)
        axis.bar_label(bars, [_short(value) for value in rows["perplexity"]], fontsize=9, color=INK, padding=2)
    counts = dict(heldout.select("bucket", "samples").iter_rows())
    axis.set_xticks(range(len(buckets)), [f"{bucket}\n({counts[bucket]:,} samples)" for bucket in buckets])
    axis.grid(False, axis="x")
    axis.margins(y=0.15)
    label(axis, x="context (tokens)", y="perplexity (lower is better)")
    legend(axis, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _short(value: float) -> str:
    """Three digits, and no exponent for the perplexities in the thousands of a small model."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def needle_heatmaps(needle: pl.DataFrame) -> Figure:
    """Accuracy by prompt length and depth of the fact, base | checkpoint. `needle`: the NEEDLE table."""
    depths, lengths = (sorted(needle[name].unique().to_list()) for name in ("depth", "length"))
    figure, axes = new_figure(
        "A fact hidden in a long context: share found", columns=2, height=1.6 + 0.42 * max(3, len(depths))
    )
    for axis, (model, _) in zip(axes, MODELS, strict=True):
        rows = needle.filter(pl.col("model") == model)
        if rows.is_empty():
            say(axis, f"{model}: not measured")
            continue
        grid = np.full((len(depths), len(lengths)), np.nan)
        for length, depth, accuracy in rows.select("length", "depth", "accuracy").iter_rows():
            grid[depths.index(depth), lengths.index(length)] = accuracy
        _heatmap(axis, grid, lengths=lengths, depths=depths)
        label(axis, x="prompt (tokens)", y="depth of the fact (% of the context)", title=model)
    return figure


def _heatmap(axis: Axes, grid: np.ndarray, *, lengths: list[int], depths: list[float]) -> None:
    axis.imshow(np.ma.masked_invalid(grid), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
    axis.set_yticks(range(len(depths)), [f"{100 * depth:.0f}" for depth in depths])
    for row, column in np.ndindex(grid.shape):
        if not np.isnan(grid[row, column]):
            ink = "white" if grid[row, column] < 0.5 else "black"
            text = f"{100 * grid[row, column]:.0f} %"
            axis.text(column, row, text, ha="center", va="center", fontsize=9, color=ink)
