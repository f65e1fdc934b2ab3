"""Plot of what a training mix holds."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from gateau_dagster.plotting import (
    ALL,
    INK,
    OTHER,
    SELECTED,
    edges,
    finite,
    label,
    legend,
    log_edges,
    new_figure,
    shortened,
)

_ORIGINS = (("long", SELECTED), ("short", OTHER))
_SHARES = (("sequences", ALL), ("tokens", SELECTED), ("trained tokens", INK))
_WIDE = 8  # lengths that differ by more than this factor get a logarithmic axis
MOST_SOURCES = 8
"""More sources than this are drawn as one, the smallest ones together."""


def mix_contents(sequences: pl.DataFrame) -> Figure:
    """How long the sequences are, and what each source's share is.

    `sequences`: `origin`, `source`, `tokens` and `trained_tokens` of each, see `mix_statistics.mix_sequences`.
    """
    groups = _groups(sequences)
    height = max(3.2, 1.5 + 0.55 * groups.height)
    figure, (left, right) = new_figure("What the training mix holds", columns=2, height=height)
    _lengths(left, sequences)
    _shares(right, groups)
    return figure


def _lengths(axis: Axes, sequences: pl.DataFrame) -> None:
    everything = finite(sequences, "tokens")
    wide = everything.max() > _WIDE * everything.min()
    bins = log_edges(everything) if wide else edges(everything)
    bottom = np.zeros(len(bins) - 1)
    for origin, colour in _ORIGINS:
        values = finite(sequences.filter(origin=origin), "tokens")
        if values.size == 0:
            continue
        counts, _ = np.histogram(values, bins)
        name = f"{origin} ({values.size:,})"
        axis.bar(bins[:-1], counts, np.diff(bins), bottom, align="edge", color=colour, label=name, linewidth=0)
        bottom += counts
    if wide:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_tick_params(rotation=30)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.grid(False, axis="x")
    label(axis, x=f"tokens of a sequence{' (logarithmic)' if wide else ''}", y="sequences")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)


def _groups(sequences: pl.DataFrame) -> pl.DataFrame:
    """Sums of each origin and source, by the largest of their shares; the smallest as one line where they are many."""
    groups = sequences.group_by("origin", "source").agg(
        pl.len().alias("sequences"),
        pl.col("tokens").sum(),
        pl.col("trained_tokens").sum().alias("trained tokens"),
    )
    largest = pl.max_horizontal(pl.col(name) / pl.col(name).sum() for name, _ in _SHARES)
    groups = groups.sort(largest, "origin", "source", descending=[True, False, False])
    names = [shortened(f"{source} ({origin})") for origin, source in groups.select("origin", "source").iter_rows()]
    sums = groups.select(pl.Series("name", names, dtype=pl.String), *(name for name, _ in _SHARES))
    rest = sums[MOST_SOURCES - 1 :]
    if rest.height <= 1:
        return sums
    others = rest.select(pl.lit(f"{rest.height} other sources").alias("name"), pl.exclude("name").sum())
    return pl.concat([sums[: MOST_SOURCES - 1], others])


def _shares(axis: Axes, groups: pl.DataFrame) -> None:
    rows = np.arange(groups.height)[::-1]
    for place, (name, colour) in enumerate(_SHARES):
        share = 100 * groups[name].to_numpy() / max(1, int(groups[name].sum()))
        axis.barh(rows + 0.25 * (1 - place), share, height=0.22, color=colour, label=name, linewidth=0)
    axis.set_yticks(rows, groups["name"].to_list())
    axis.tick_params(axis="y", labelcolor=INK, length=0)
    axis.grid(False, axis="y")
    label(axis, x="share of the mix (%)", y="")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
