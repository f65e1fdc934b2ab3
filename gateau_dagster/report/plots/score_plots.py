"""Plots of the scores: their distribution, where the two terms put each sample, how long the selected samples are."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, StrMethodFormatter

from gateau_dagster.config import PRESETS
from gateau_dagster.plotting import (
    ALL,
    CHECKPOINT,
    FAR,
    OTHER,
    PRESET_COLOURS,
    SELECTED,
    edges,
    finite,
    finite_pairs,
    label,
    legend,
    log_edges,
    new_figure,
    say,
    shortened,
)

MARKS = 3000
"""A scatter plot shows no more samples than this: more would cover each other."""
PIXELS_ABOVE = 1000
"""More marks than this are drawn as pixels, not as shapes: the page stays small."""


def score_distributions(scores: pl.DataFrame, *, far: pl.Series | None = None) -> Figure:
    """A histogram of `score_<preset>` (Eq. 6) for each preset.

    `scores`: combined_scores. `far`: boolean, a value per row: the samples known to need far context, coloured apart.
    """
    figure, axes = new_figure("Final score of every sample, under each preset", columns=len(PRESETS), height=3.0)
    for axis, preset in zip(axes, PRESETS, strict=True):
        # A sample without CAS ranks below all others; its place on the axis means nothing.
        known = scores[f"cas_{preset}"].is_not_null()
        part = None if far is None else far.filter(known)
        _histogram(axis, scores.filter(known), f"score_{preset}", colour=PRESET_COLOURS[preset], far=part)
        label(axis, x="score (no unit)", y="samples", title=preset)
        axis.yaxis.label.set_visible(preset == PRESETS[0])
    if far is not None and axes[0].get_legend_handles_labels()[0]:
        legend(axes[0])
    return figure


def method_scores(scores: pl.DataFrame, *, method: str, far: pl.Series | None = None) -> Figure:
    """A histogram of the column `score` of the method that selects. `far`: as for score_distributions."""
    figure, (axis,) = new_figure(f"Score of every sample under {shortened(method)}", height=3.0)
    _histogram(axis, scores, "score", colour=CHECKPOINT, far=far, empty="no sample has a score")
    label(axis, x="score, in the method's own unit", y="samples")
    if far is not None:
        legend(axis)
    return figure


def _histogram(
    axis: Axes,
    scores: pl.DataFrame,
    column: str,
    *,
    colour: str,
    far: pl.Series | None,
    empty: str = "no sample has both terms",
) -> None:
    values = finite(scores, column)
    if values.size == 0:
        say(axis, empty)
        return
    bins = edges(values)
    groups = [(None, scores, colour)]
    if far is not None:
        groups = [("needs far context", scores.filter(far), FAR), ("does not", scores.filter(~far), OTHER)]
    bottom = np.zeros(len(bins) - 1)
    for name, frame, fill in groups:
        counts, _ = np.histogram(finite(frame, column), bins)
        axis.bar(bins[:-1], counts, np.diff(bins), bottom, align="edge", color=fill, label=name, linewidth=0)
        bottom += counts
    axis.grid(False, axis="x")
    axis.locator_params(axis="x", nbins=4)
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))


def terms_scatter(scores: pl.DataFrame, *, preset: str, far: pl.Series | None = None) -> Figure:
    """HMP (Eq. 2) against CAS (Eq. 5) as `preset` uses them: one mark per sample.

    The selected samples are ringed (bool column `selected`, where there is one).
    Of more than `MARKS` samples, as many are drawn, evenly spaced by rank; the title says so.
    """
    x, y = f"hmp_{preset}", f"cas_{preset}"
    frame = scores.with_columns(pl.Series("_far", far if far is not None else [False] * scores.height))
    everything = finite_pairs(frame, x, y).sort(f"rank_{preset}")
    points = everything.gather_every(max(1, -(-everything.height // MARKS)))
    part = "" if points.height == everything.height else f" ({points.height:,} of {everything.height:,} samples drawn)"
    title = f"The two terms of the score, preset {preset}{part}"
    figure, (axis,) = new_figure(title, width=8.2, height=4.9)
    if points.is_empty():
        say(axis, "no sample has both terms: every context is shorter than two segments")
        return figure
    groups = [("does not need far context", points.filter(~pl.col("_far")), OTHER)]
    groups.append(("needs far context", points.filter("_far"), FAR))
    for name, group, colour in groups:
        shown = None if far is None else name
        axis.scatter(
            group[x],
            group[y],
            s=18,
            c=colour,
            label=shown,
            alpha=0.85,
            linewidths=0,
            rasterized=points.height > PIXELS_ABOVE,
        )
    if "selected" in points.columns:
        first = points.filter("selected")
        axis.scatter(
            first[x], first[y], s=44, facecolors="none", edgecolors=SELECTED, linewidths=1.1, label="selected",
            rasterized=first.height > PIXELS_ABOVE,
        )  # fmt: skip
    label(axis, x="HMP as the preset uses it: how much the long model helps", y="CAS as the preset uses it")
    axis.ticklabel_format(style="sci", scilimits=(-2, 4))
    if axis.get_legend_handles_labels()[0]:
        legend(axis, loc="best")
    return figure


def context_lengths(scores: pl.DataFrame, *, selected: pl.Series, unit: str = "tokens") -> Figure:
    """Shares of all and of the selected samples by `context_<unit>`. `selected`: boolean, a value per row."""
    figure, (axis,) = new_figure("Context length: selected samples against all", height=3.2)
    everything, chosen = (finite(frame, f"context_{unit}") for frame in (scores, scores.filter(selected)))
    if everything.size == 0:
        say(axis, "no context length is known")
        return figure
    bins = log_edges(everything)
    for values, colour, name in ((everything, ALL, "all scored samples"), (chosen, SELECTED, "selected")):
        # Clipped as the edges were: an empty context counts as one token.
        counts, _ = np.histogram(np.maximum(values, 1.0), bins)
        share = 100 * counts / max(1, values.size)
        text = f"{name} ({values.size:,})"
        axis.stairs(share, bins, fill=name != "selected", linewidth=2, color=colour, label=text)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(bottom=0)
    label(axis, x=f"context ({unit}, logarithmic)", y="share of the samples (%)")
    legend(axis)
    return figure
