"""Plot an experiment: values and differences with their intervals, over amounts, over lengths and depths."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from gateau_dagster.features.evaluation.statistics.compare import Outcomes
from gateau_dagster.plotting import (
    BASE,
    INK,
    MUTED,
    ON_DARK,
    ON_LIGHT,
    SELECTED,
    entitle,
    label,
    legend,
    new_figure,
    shortened,
)
from gateau_dagster.readable import unit_of_difference

SERIES = ("#0072b2", "#d55e00", "#009e73", "#b7588c", "#d08700", "#56a5d8", "#7d8d9c", "#a5568f")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_OUTCOMES = ("#2a8a68", "#d5dde4", "#c9683a")
MOST_GRIDS = 12
"""Heat maps in one figure; other models are only in the table."""


def values_and_differences(
    rows: pl.DataFrame, *, title: str, unit: str, reference: str, bounds: tuple[float, float]
) -> Figure:
    """Draw a dot and its interval for each model, and next to it those of its difference to the reference.

    rows: tables.EXPERIMENT of one benchmark. bounds: the range of possible values.
    """
    compared = rows["difference"].is_not_null().any()
    height = 1.5 + 0.34 * rows.height
    figure, axes = new_figure(title, columns=2 if compared else 1, height=height)
    _dots(axes[0], rows, ("value", "low", "high"))
    axes[0].set_xlim(*_possible(axes[0].get_xlim(), bounds))
    label(axes[0], x=unit, y="", title="value")
    if compared:
        _dots(axes[1], rows, ("difference", "difference_low", "difference_high"))
        axes[1].axvline(0, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)))
        label(axes[1], x=unit_of_difference(unit), y="", title=f"difference to {shortened(reference)}")
    for number, axis in enumerate(axes):
        axis.set_yticks(range(rows.height), [shortened(name) for name in rows["variant"]][::-1])
        for text, best in zip(axis.get_yticklabels()[::-1], rows["best"], strict=True):
            text.set(color=SELECTED if best else INK, fontweight="bold" if best else "normal")
        axis.tick_params(axis="y", labelleft=number == 0)  # the second panel's labels are only for narrow pages
    return figure


def _possible(ends: tuple[float, float], bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the limits of an axis, which exceed the possible values only by the margin that a dot needs."""
    least, most = bounds
    margin = 0.03 * (ends[1] - ends[0])
    low, high = max(ends[0], least - margin), min(ends[1], most + margin)
    return (low, high) if high - low > 4 * margin else ends


def _dots(axis: Axes, rows: pl.DataFrame, names: tuple[str, str, str]) -> None:
    for place, row in enumerate(rows.reverse().iter_rows(named=True)):
        value, low, high = (row[name] for name in names)
        if value is None:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
            axis.text(0, place, "the reference", va="center", ha="center", fontsize=8.5, color=MUTED, bbox=box)
            continue
        colour = SELECTED if row["best"] else BASE
        if low is not None:
            axis.hlines(place, low, high, color=colour, linewidth=2.2)
        axis.plot(value, place, "o", color=colour, markersize=7, markeredgecolor="white")
    axis.set_ylim(-0.6, rows.height - 0.4)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0, labelsize=9.5)


def over_amounts(points: pl.DataFrame, *, title: str, unit: str, bounds: tuple[float, float]) -> Figure:
    """Draw one line per series over the number of samples, with intervals; models without a series as level lines.

    points: `variant`, `series`, `samples`, `value`, `low`, `high`, from report.experiment.amounts.
    """
    figure, (axis,) = new_figure(title, height=3.6)
    lines = points.filter(pl.col("series") != "").partition_by("series", maintain_order=True)
    for place, line in enumerate(lines):
        found = line.sort("samples")
        x = found["samples"].to_numpy() * 1.012 ** (place - (len(lines) - 1) / 2)  # intervals are drawn side by side
        colour = SERIES[place % len(SERIES)]
        axis.plot(x, found["value"], marker=_MARKERS[place % len(_MARKERS)], color=colour, linewidth=1.9,
                  markersize=5.5, label=shortened(found["series"][0]), zorder=3)  # fmt: skip
        known = found.with_columns(x=pl.Series(x)).drop_nulls(["low", "high"])
        axis.vlines(known["x"], known["low"], known["high"], color=colour, linewidth=1.3, alpha=0.55)
    axis.set_xscale("log")
    ticks = sorted(points.filter(pl.col("series") != "")["samples"].unique().to_list())
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(*_possible(axis.get_ylim(), bounds))
    _level_lines(axis, points.filter(series=""))
    label(axis, x="long samples trained on (logarithmic)", y=unit)
    legend(axis, loc="upper left", bbox_to_anchor=(1.11, 1.0))
    return figure


def _level_lines(axis: Axes, models: pl.DataFrame) -> None:
    """Draw level lines with the models' names next to them, spaced so that each can be read."""
    bottom, top = axis.get_ylim()
    place = -math.inf
    for row in models.sort("value").iter_rows(named=True):
        axis.axhline(row["value"], color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        place = max(row["value"], place + 0.07 * (top - bottom))
        axis.text(1.005, place, shortened(row["variant"]), transform=axis.get_yaxis_transform(), va="center",
                  fontsize=8.5, color=MUTED)  # fmt: skip


def outcome_bars(found: Sequence[Outcomes], *, title: str, reference: str) -> Figure:
    """Draw per model the shares of questions that it answers better than the reference, equally well, and worse."""
    names = [shortened(each.name) for each in found]
    shares = [(each.better, each.equal, each.worse) for each in found]
    than = f"than {shortened(reference)}"
    words = (f"better {than}", "equal", f"worse {than}")
    return three_shares(names, shares, title=title, words=words, of="share of the questions (%)")


def three_shares(
    names: Sequence[str], shares: Sequence[Sequence[float]], *, title: str, words: Sequence[str], of: str
) -> Figure:
    """Draw one bar per name, divided by its shares, in 0..1: good, neither, bad, labelled by `words`."""
    figure, (axis,) = new_figure(title, width=8.2, height=1.4 + 0.36 * len(names))
    rows = np.arange(len(names))[::-1]
    left = np.zeros(len(names))
    for part, (word, colour) in enumerate(zip(words, _OUTCOMES, strict=True)):
        share = 100 * np.array([each[part] for each in shares])
        axis.barh(rows, share, left=left, height=0.62, color=colour, label=word, linewidth=0)
        for row, start, width in zip(rows, left, share, strict=True):
            if width >= 6:
                ink = ON_LIGHT if part == 1 else ON_DARK
                axis.text(start + width / 2, row, f"{width:.0f}", ha="center", va="center", fontsize=8.5, color=ink)
        left += share
    axis.set_yticks(rows, names)
    axis.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=INK)
    axis.set_xlim(0, 100)
    axis.grid(False, axis="y")
    label(axis, x=of, y="")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    return figure


def ratings(means: pl.DataFrame, *, lowest: float, highest: float) -> Figure:
    """Draw a judge's ratings of the best and worst samples, one row per characteristic, from `mean_ratings`."""
    figure, (axis,) = new_figure("Best and worst samples by a judge", width=8.2, height=1.2 + 0.42 * means.height)
    for shift, part, colour in ((0.13, "best", SELECTED), (-0.13, "worst", BASE)):
        known = means.with_columns(place=means.height - 1 + shift - pl.int_range(means.height)).drop_nulls(part)
        axis.plot(known[part], known["place"], "o", color=colour, markersize=7, markeredgecolor="white", label=part)
        spread = known.drop_nulls(f"{part}_margin")
        low, high = (
            (spread[part] + sign * spread[f"{part}_margin"]).clip(lowest, highest).to_numpy() for sign in (-1, 1)
        )
        axis.hlines(spread["place"], low, high, color=colour, linewidth=2.2, zorder=1)
    axis.set_yticks(range(means.height), means["characteristic"].to_list()[::-1])
    axis.set_ylim(-0.6, means.height - 0.4)
    axis.set_xlim(lowest - 0.1, highest + 0.1)
    axis.grid(False, axis="y")
    axis.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=INK)
    label(axis, x=f"mean rating, {lowest:g} to {highest:g}", y="")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    return figure


def by_group(
    groups: Sequence[str],
    values: Sequence[tuple[str, Sequence[float]]],
    *,
    title: str,
    heading: str,
    unit: str,
) -> Figure:
    """Draw one line per model over ordered groups, such as lengths. values: by model, group by group."""
    figure, (axis,) = new_figure(title, height=3.4)
    for place, (name, each) in enumerate(values):
        axis.plot(range(len(groups)), each, marker=_MARKERS[place % len(_MARKERS)], linewidth=1.7, markersize=5.5,
                  color=SERIES[place % len(SERIES)], label=shortened(name),
                  linestyle="-" if place < len(SERIES) else (0, (3, 2)))  # fmt: skip
    axis.set_xticks(range(len(groups)), [shortened(name) for name in groups])
    label(axis, x=heading, y=unit)
    legend(axis, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def grids(cells: pl.DataFrame, *, title: str, unit: str, bounds: tuple[float, float]) -> Figure:
    """Draw heat maps over length and depth, one panel per model. All use the scale of possible values, so a colour
    means the same in every run. cells: from BenchmarkResult.grid.
    """
    models = cells["model"].unique(maintain_order=True).to_list()[:MOST_GRIDS]
    lengths, depths = (cells[name].unique().sort().to_list() for name in ("length", "depth"))
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure = Figure(figsize=(10.2, 0.7 + rows * (1.1 + 0.24 * max(3, len(depths)))), layout="constrained",
                    facecolor="white")  # fmt: skip
    entitle(figure, title)
    axes, unused = np.split(figure.subplots(rows, columns, squeeze=False).ravel(), [len(models)])
    for axis in unused:  # hiding is not enough: they would affect the position of the colour bar
        axis.remove()
    low, high = bounds
    image = None
    for axis, model in zip(axes, models, strict=True):
        grid = np.full((len(depths), len(lengths)), np.nan)
        for length, depth, value in cells.filter(model=model).select("length", "depth", "value").iter_rows():
            grid[depths.index(depth), lengths.index(length)] = value
        image = axis.imshow(np.ma.masked_invalid(grid), cmap="cividis", vmin=low, vmax=high, aspect="auto")
        _cells(axis, lengths, depths)
        label(axis, x="", y="", title=shortened(model))
    if image is not None:
        bar = figure.colorbar(image, ax=axes.tolist(), shrink=0.8, pad=0.01)
        bar.set_label(unit, fontsize=9, color=INK)
        bar.ax.tick_params(labelsize=8, colors=MUTED)
        bar.outline.set_visible(False)  # type: ignore[operator]
    figure.supxlabel("length of the context (tokens)", fontsize=9.5, color=INK)
    figure.supylabel("depth (%)", fontsize=9.5, color=INK)
    return figure


def _cells(axis: Axes, lengths: Sequence[int], depths: Sequence[float]) -> None:
    every = max(1, -(-len(lengths) // 6))
    axis.set_xticks(range(0, len(lengths), every), [_thousands(length) for length in lengths[::every]])
    each = max(1, -(-len(depths) // 6))
    axis.set_yticks(range(0, len(depths), each), [f"{100 * depth:.0f}" for depth in depths[::each]])
    axis.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    axis.spines[:].set_visible(False)
    axis.grid(False)


def _thousands(length: int) -> str:
    return f"{length / 1000:.3g}k" if length >= 1000 else str(length)
