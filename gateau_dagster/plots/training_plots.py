"""Plot a training run: its mix, the relative distances that it sees, and its loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from gateau_dagster.plotting import (
    ALL,
    CHECKPOINT,
    FAR,
    INK,
    OTHER,
    SELECTED,
    edges,
    finite,
    label,
    legend,
    log_edges,
    new_figure,
    say,
    shortened,
)

_ORIGINS = (("long", SELECTED), ("short", OTHER))
_SHARES = (("sequences", ALL), ("tokens", SELECTED), ("trained tokens", INK))
_WIDE = 8  # lengths that differ by more than this factor get a logarithmic axis
MOST_SOURCES = 8
"""With more sources than this, the smallest are merged into one."""
_DEEPEST = 1e-4
"""The smallest share, relative to the largest, on the logarithmic axis of shares."""
SMOOTH_ABOVE = 30
"""Number of logged steps from which a running mean is drawn over the raw loss."""


def training_curve(log: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw loss and learning rate by optimiser step. Entries of `log`: `step`, and `loss`, `learning_rate` or both."""
    figure, (left, right) = new_figure("Fine-tuning on the selected samples", columns=2, height=3.2)
    _line(left, log, "loss", CHECKPOINT)
    label(left, x="optimiser step", y="loss (nats per response token)", title="loss")
    _line(right, log, "learning_rate", FAR)
    label(right, x="optimiser step", y="learning rate", title="learning rate")
    return figure


def training_speed(log: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw tokens per second and memory by optimiser step, with the median share of the GPUs' peak where it is known.

    Entries of `log`: `step`, and some of `tokens_per_second`, `mfu`, `peak_memory_bytes`, `host_memory_bytes`.
    """
    figure, (left, right) = new_figure("Speed and memory of the training", columns=2, height=3.2)
    _line(left, log, "tokens_per_second", CHECKPOINT)
    shares = curve(log, "mfu")[1]
    title = "speed" if not shares else f"speed: {np.median(shares):.0%} of the GPUs' matrix products"
    label(left, x="optimiser step", y="tokens per second", title=title)
    for key, name, colour in (
        ("peak_memory_bytes", "peak of the GPU, or of the process", FAR),
        ("host_memory_bytes", "process in the host's memory", ALL),
    ):
        steps, values = curve(log, key)
        if steps:
            gibibytes = [value / 2**30 for value in values]
            right.plot(steps, gibibytes, color=colour, marker="o" if len(steps) < SMOOTH_ABOVE else None, label=name)
    if right.lines:
        right.set_ylim(bottom=0)
        right.locator_params(axis="x", integer=True, nbins=6)
        legend(right)
    else:
        say(right, "no memory was logged")
    label(right, x="optimiser step", y="GiB", title="memory of one rank")
    return figure


def curve(log: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Return steps and finite values of `key`, in step order; the last entry of a step counts (resumed runs)."""
    values = {float(entry["step"]): float(entry[key]) for entry in log if entry.get(key) is not None}
    points = sorted((step, value) for step, value in values.items() if np.isfinite(value))
    return [step for step, _ in points], [value for _, value in points]


def _line(axis: Axes, log: Sequence[Mapping[str, Any]], key: str, colour: str) -> None:
    steps, values = curve(log, key)
    if not steps:
        say(axis, f"no {key.replace('_', ' ')} was logged")
        return
    long = key == "loss" and len(values) >= SMOOTH_ABOVE
    marker = "o" if len(values) < SMOOTH_ABOVE else None
    axis.plot(steps, values, color=colour, linewidth=1.0 if long else 1.8, alpha=0.4 if long else 1.0, marker=marker,
              markersize=3.5)  # fmt: skip
    if long:
        width = max(3, len(values) // 12)
        smooth = np.convolve(values, np.ones(width) / width, mode="valid")
        axis.plot(steps[width // 2 : width // 2 + len(smooth)], smooth, color=colour, linewidth=2.2)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    axis.set_ylim(bottom=0)
    axis.locator_params(axis="x", integer=True, nbins=6)


def mix_contents(sequences: pl.DataFrame) -> Figure:
    """Draw the lengths of the sequences, and each source's share.

    `sequences`: `origin`, `source`, `tokens` and `trained_tokens` of each, from `training_mix.mix_sequences`.
    """
    groups = _groups(sequences)
    height = max(3.2, 1.5 + 0.55 * groups.height)
    figure, (left, right) = new_figure("What the training mix holds", columns=2, height=height)
    _sequence_lengths(left, sequences)
    _source_shares(right, groups)
    return figure


def _sequence_lengths(axis: Axes, sequences: pl.DataFrame) -> None:
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
    """Return the sums per origin and source, ordered by the largest of their shares; many small ones are merged."""
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


def _source_shares(axis: Axes, groups: pl.DataFrame) -> None:
    rows = np.arange(groups.height)[::-1]
    for place, (name, colour) in enumerate(_SHARES):
        share = 100 * groups[name].to_numpy() / max(1, int(groups[name].sum()))
        axis.barh(rows + 0.25 * (1 - place), share, height=0.22, color=colour, label=name, linewidth=0)
    axis.set_yticks(rows, groups["name"].to_list())
    axis.tick_params(axis="y", labelcolor=INK, length=0)
    axis.grid(False, axis="y")
    label(axis, x="share of the mix (%)", y="")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)


def relative_distances(table: pl.DataFrame) -> Figure:
    """Draw the shares before and after skipping twice: over the whole range of distances, and the short ones enlarged.

    Args:
        table: one row per bin of distances with `first` (included), `end` (excluded), and `before` and `after`, shares
            of the samples; from `training.skip_positions.relative_distances`.
    """
    figure, (whole, close) = new_figure("Relative distances before and after skipping positions", columns=2)
    if table.select(pl.max_horizontal("before", "after").max()).item() in {None, 0.0}:
        for axis in (whole, close):
            say(axis, "no sample has a response to learn")
        return figure
    for axis in (whole, close):
        _distance_shares(axis, table)
    label(whole, x="relative distance (tokens)", y="samples that hold it (%, logarithmic)", title="whole range")
    label(
        close,
        x="relative distance (tokens, logarithmic)",
        y="samples that hold it (%)",
        title="short distances enlarged",
    )
    whole.set_yscale("log")
    whole.set_ylim(*_share_limits(table))
    whole.set_xlim(0, float(table["end"][-1]))
    whole.locator_params(axis="x", nbins=6)
    whole.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    close.set_xscale("log", base=10)
    close.set_xlim(1, max(2.0, float(table["end"][-1])))
    close.set_ylim(bottom=0)
    for axis in (whole, close):
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    legend(whole)
    return figure


def _distance_shares(axis: Axes, table: pl.DataFrame) -> None:
    """Draw plain positions as an area and skipped ones as a line over it: both stay visible if they agree."""
    edges = np.append(table["first"].to_numpy(), table["end"][-1]).astype(float)
    axis.stairs(100 * table["before"].to_numpy(), edges, fill=True, color=OTHER, label="plain positions")
    axis.stairs(100 * table["after"].to_numpy(), edges, color=FAR, linewidth=1.8, baseline=None, label="skipped")


def _share_limits(table: pl.DataFrame) -> tuple[float, float]:
    """Return limits of a logarithmic axis in percent: all shares but those less than 1/10,000 of the largest one."""
    shares = 100 * np.concatenate([table["before"].to_numpy(), table["after"].to_numpy()])
    top = float(shares.max())
    smallest = float(shares[shares > top * _DEEPEST].min())
    return smallest / 2, top * 1.5
