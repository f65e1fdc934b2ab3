"""Plot scores: distributions, the two terms, lengths of the selection, sweeps of parameters, profiles of methods."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from gateau_dagster.comparison.result import (
    AlphaSweep,
    FigureSpread,
    MethodComparison,
    Point,
    Profile,
    SegmentLengthSweep,
    WindowSweep,
)
from gateau_dagster.config import PRESETS, Preset
from gateau_dagster.config.selection import DEPENDENCIES
from gateau_dagster.plotting import (
    ALL,
    CHECKPOINT,
    FAINT,
    FAR,
    FRAME,
    INK,
    MUTED,
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
from gateau_dagster.selection.presets import TERM_NAMES

# Presets whose curves often coincide: the later one is dashed.
_LINES = {"official": (0, (3, 2))}


def alpha_curves(sweep: AlphaSweep) -> Figure:
    """Draw the agreement with the configured ranking over alpha, and AUROC with a ground truth: one line per preset."""
    measured = any(point.auroc is not None for curve in sweep.curves for point in curve.points)
    panels = _panels("α", sweep.chosen, measured=measured)
    figure, axes = new_figure("What the weight α changes", columns=len(panels), height=3.3)
    for axis, (name, title, unit) in zip(axes, panels, strict=True):
        for curve in sweep.curves:
            axis.plot(
                *_known(curve.points, name), marker="o", markersize=3.5, linewidth=1.8,
                linestyle=_LINES.get(curve.preset, "-"), color=PRESET_COLOURS[curve.preset], label=curve.preset,
            )  # fmt: skip
        label(axis, x="α, weight of the first term", y=unit, title=title)
        _frame(axis, sweep.alpha)
        axis.set_xlim(-0.03, 1.03)
    _level(axes[1], sweep.chosen / max(1, sweep.samples))
    if measured:
        _level(axes[2], 0.5)
    legend(axes[0], loc="best")
    return figure


def segment_length_curves(sweep: SegmentLengthSweep) -> Figure:
    """Draw agreement with the configured segment length's ranking, and AUROC with a ground truth, over the length."""
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


def window_curves(sweep: WindowSweep) -> Figure:
    """Draw the far samples, those among the chosen ones and the common choice, over theta_A's window."""
    figure, axes = new_figure("What theta_A's window changes", columns=2, height=3.0)
    windows = [point.window for point in sweep.points if point.window is not None]
    shares = {
        "have far text": (OTHER, [point.far_text / max(1, sweep.samples) for point in sweep.points]),
        "depend on far text": (FAR, [point.far / max(1, sweep.samples) for point in sweep.points]),
    }
    chosen = {
        "of the present choice": (SELECTED, [point.common for point in sweep.points]),
        "depend on far text": (FAR, [point.chosen_far / max(1, point.chosen) for point in sweep.points]),
    }
    panels = (("all samples", shares), ("chosen samples, estimated", chosen))
    for axis, (title, curves) in zip(axes, panels, strict=True):
        axis.set_xscale("log", base=2)
        for name, (colour, values) in curves.items():
            axis.plot(windows, values, marker="o", markersize=4.5, linewidth=1.8, color=colour, label=name)
        axis.set_xticks(windows, [f"{window:g}" for window in windows])
        axis.minorticks_off()
        label(axis, x="tokens of theta_A's window", y="share", title=title)
        axis.set_xlim(min(windows) / 1.3, max(windows) * 1.3)
        axis.set_ylim(0.0, 1.04)
        if sweep.stored.window is not None:
            axis.axvline(sweep.stored.window, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        legend(axis, loc="best")
    return figure


def _panels(parameter: str, chosen: int, *, measured: bool) -> list[tuple[str, str, str]]:
    """Return field of Point, title and unit; `measured`: with a ground truth."""
    found = [
        ("spearman", f"rank correlation with this run's {parameter}", "Spearman"),
        ("overlap", f"common among the first {chosen:,}", "share"),
    ]
    return [*found, ("auroc", "finding “needs far context”", "AUROC")] if measured else found


def _known(points: Sequence[Point], name: str) -> tuple[list[float], list[float]]:
    """Return the points' values and this figure, for points that have it."""
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


SOURCES = ("#0072b2", "#d08700", "#009e73", "#b7588c", "#56a5d8", "#a3a12b", "#7a4fa3", "#c3cdd6")
"""Colours of the first sources; the last colour is for all others."""
WIDE = 30
"""The ratio of the largest to the smallest median from which an axis is logarithmic."""


def method_profiles(comparison: MethodComparison) -> Figure:
    """Draw four panels with a row for all samples and one for each method.

    Lengths and perplexity: median (dot) and quartiles (line). Sources: stacked shares in the colours `SOURCES`.
    """
    names = ["all samples", *(shortened(facts.name) for facts in comparison.methods)]
    profiles = [comparison.everything, *(facts.best for facts in comparison.methods)]
    figure, axes = new_figure("What each method prefers: its best tenth", columns=4, height=1.7 + 0.3 * len(names))
    colours = [MUTED, *(_colour(name, comparison) for name in comparison.names)]
    _figure(axes[0], [one.context_tokens for one in profiles], colours, "context", "tokens")
    _figure(axes[1], [one.response_tokens for one in profiles], colours, "response", "tokens")
    _figure(
        axes[2], [one.perplexity for one in profiles], colours, "perplexity of the response", "under the long model"
    )
    _sources(axes[3], profiles)
    for number, axis in enumerate(axes):
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_yticks(range(len(names)), names)
        axis.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=INK)
        axis.grid(False, axis="y")
        axis.axhline(0.5, color=FRAME, linewidth=0.8)
        for text, name in zip(axis.get_yticklabels(), ["", *comparison.names], strict=True):
            if name == comparison.selected_by and name:
                text.set(color=SELECTED, fontweight="bold")
        axis.tick_params(axis="y", labelleft=number == 0)
    return figure


def source_colours(count: int) -> list[int]:
    """Return the index in `SOURCES` of each of `count` sources; those without their own colour take the last one."""
    return [min(number, len(SOURCES) - 1) for number in range(count)]


def _colour(name: str, comparison: MethodComparison) -> str:
    return SELECTED if name == comparison.selected_by else CHECKPOINT


def _figure(axis: Axes, spreads: Sequence[FigureSpread | None], colours: Sequence[str], title: str, unit: str) -> None:
    label(axis, x=unit, y="", title=title)
    known = [spread for spread in spreads if spread is not None]
    if not known:
        say(axis, "not known")
        return
    everything = spreads[0]
    if everything is not None:
        axis.axvspan(everything.low, everything.high, color=FAINT, zorder=0)
        axis.axvline(everything.median, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    for row, (spread, colour) in enumerate(zip(spreads, colours, strict=True)):
        if spread is None:
            axis.text(
                0.03, row, "no sample", transform=axis.get_yaxis_transform(), va="center", fontsize=8, color=MUTED
            )
            continue
        axis.hlines(row, spread.low, spread.high, color=colour, linewidth=3.2, alpha=0.45, zorder=2)
        axis.plot(spread.median, row, "o", color=colour, markersize=6, zorder=3)
    smallest, largest = (extreme(spread.median for spread in known) for extreme in (min, max))
    if smallest > 0 and largest / smallest > WIDE:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_xlim(left=0)
        axis.locator_params(axis="x", nbins=4)
    axis.xaxis.set_major_formatter(FuncFormatter(_short))


def _sources(axis: Axes, profiles: Sequence[Profile]) -> None:
    label(axis, x="share of the samples", y="", title="sources (colours below)")
    left = [0.0] * len(profiles)
    for number, colour in enumerate(source_colours(len(profiles[0].sources))):
        widths = [profile.sources[number] for profile in profiles]
        axis.barh(range(len(profiles)), widths, 0.66, left, color=SOURCES[colour], edgecolor="white", linewidth=0.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, profile in enumerate(profiles):
        if not profile.samples:
            axis.text(0.02, row, "no sample", va="center", fontsize=8, color=MUTED)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axis.set_xticks([0, 0.5, 1])
    axis.grid(False)


def _short(value: float, _: object) -> str:
    if value >= 1000:
        return f"{value / 1000:,.4g}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


MARKS = 1500
"""The most samples in a scatter plot: more would cover each other."""
PIXELS_ABOVE = 500
"""More marks than this are drawn as pixels, not as shapes, to keep the page small."""


def score_distributions(scores: pl.DataFrame, *, far: pl.Series | None = None) -> Figure:
    """Draw a histogram of `score_<preset>` (Eq. 6) for each preset.

    scores: combined_scores.
    far: boolean, one value per row; samples known to need far context get another colour.
    """
    figure, axes = new_figure("Final score of every sample, under each preset", columns=len(PRESETS), height=3.0)
    for axis, preset in zip(axes, PRESETS, strict=True):
        # A sample without a second term ranks below all others; its position on the axis is meaningless.
        known = scores[f"cas_{preset}"].is_not_null()
        part = None if far is None else far.filter(known)
        _histogram(axis, scores.filter(known), f"score_{preset}", colour=PRESET_COLOURS[preset], far=part)
        label(axis, x="score (no unit)", y="samples", title=preset)
        axis.yaxis.label.set_visible(preset == PRESETS[0])
    if far is not None and axes[0].get_legend_handles_labels()[0]:
        legend(axes[0])
    return figure


def method_scores(scores: pl.DataFrame, *, method: str, far: pl.Series | None = None) -> Figure:
    """Draw a histogram of the column `score` of the method that selects. `far`: as for score_distributions."""
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


def terms_scatter(scores: pl.DataFrame, *, preset: Preset, far: pl.Series | None = None) -> Figure:
    """Draw the first term of `preset` against its second (selection.presets.TERM_NAMES): one mark per sample.

    The selected samples are ringed (bool column `selected`, if there is one). With more than `MARKS` samples, that many
    are drawn, evenly spaced by rank, and the title reports it.
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
    label(axis, x=TERM_NAMES[preset][0], y=TERM_NAMES[preset][1])
    axis.ticklabel_format(style="sci", scilimits=(-2, 4))
    if axis.get_legend_handles_labels()[0]:
        legend(axis, loc="best")
    return figure


def ranking_curve(scores: pl.DataFrame, *, selected: pl.Series) -> Figure:
    """Draw the column `score` by rank, with a mark per selected sample.

    The title names the gap: the lowest selected score, and the highest one that is not selected.

    Args:
        scores: a row per sample.
        selected: boolean, one value per row.
    """
    frame = scores.select("score", pl.Series("selected", selected)).filter(pl.col("score").is_finite())
    frame = frame.sort("score", descending=True).with_row_index("rank", 1)
    figure, (axis,) = new_figure("Score by rank", width=8.2, height=3.6)
    if frame.is_empty():
        say(axis, "no sample has a score")
        return figure
    chosen, left = frame.filter("selected"), frame.filter(~pl.col("selected"))
    axis.plot(frame["rank"], frame["score"], color=ALL, linewidth=2, label=f"all ({frame.height:,})")
    axis.scatter(
        chosen["rank"], chosen["score"], s=30, c=SELECTED, label=f"selected ({chosen.height:,})", linewidths=0,
        zorder=3, rasterized=chosen.height > PIXELS_ABOVE,
    )  # fmt: skip
    if chosen.height and left.height:
        gap = f"lowest selected: {chosen['score'].min():.4g}; highest not selected: {left['score'].max():.4g}"
        axis.set_title(gap, fontsize=9, color=MUTED, loc="left")
    label(axis, x="rank", y="score")
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    legend(axis)
    return figure


def dependency_shares(dependencies: pl.DataFrame, *, selected: pl.Series) -> Figure:
    """Draw the shares of all and of selected samples by what their response depends on.

    Args:
        dependencies: a row per sample, with `dependency`, as `selection.evidence` gives it.
        selected: boolean, one value per row.
    """
    figure, (axis,) = new_figure("What responses depend on: selected samples against all", width=8.2, height=3.2)
    groups = (("all", dependencies, ALL), ("selected", dependencies.filter(selected), SELECTED))
    places = np.arange(len(DEPENDENCIES))
    for offset, (name, frame, colour) in zip((-0.2, 0.2), groups, strict=True):
        counts = [frame.filter(dependency=each).height for each in DEPENDENCIES]
        shares = 100 * np.array(counts) / max(1, frame.height)
        axis.barh(places + offset, shares, height=0.38, color=colour, label=f"{name} ({frame.height:,})")
    axis.set_yticks(places, [each.replace("_", " ") for each in DEPENDENCIES])
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    label(axis, x="share of the samples (%)", y="")
    legend(axis, loc="lower right")
    return figure


def text_lengths(scores: pl.DataFrame, *, selected: pl.Series, unit: str = "tokens") -> Figure:
    """Draw the shares of all and of selected samples by `context_<unit>` and by `response_<unit>`.

    `selected`: boolean, one value per row.
    """
    figure, axes = new_figure("Lengths: selected samples against all", columns=2, height=3.2)
    for axis, part in zip(axes, ("context", "response"), strict=True):
        _lengths(axis, part, *(finite(frame, f"{part}_{unit}") for frame in (scores, scores.filter(selected))))
        label(axis, x=f"{part} ({unit}, logarithmic)", y="share of the samples (%)")
    return figure


def _lengths(axis: Axes, part: str, everything: NDArray[np.float64], chosen: NDArray[np.float64]) -> None:
    if everything.size == 0:
        say(axis, f"no {part} length is known")
        return
    bins = log_edges(everything)
    for values, colour, name in ((everything, ALL, "all scored samples"), (chosen, SELECTED, "selected")):
        # Clipped like the edges: an empty context counts as one token.
        counts, _ = np.histogram(np.maximum(values, 1.0), bins)
        share = 100 * counts / max(1, values.size)
        text = f"{name} ({values.size:,})"
        axis.stairs(share, bins, fill=name != "selected", linewidth=2, color=colour, label=text)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_ylim(bottom=0)
    legend(axis)
