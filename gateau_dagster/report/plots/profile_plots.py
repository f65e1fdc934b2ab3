"""Plot of what each method prefers: lengths, perplexity and sources of its best tenth, beside all samples."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from gateau_dagster.comparison.result import MethodComparison, Profile, Spread
from gateau_dagster.plotting import CHECKPOINT, FAINT, FRAME, INK, MUTED, SELECTED, label, new_figure, say, shortened

SOURCES = ("#0072b2", "#d08700", "#009e73", "#b7588c", "#56a5d8", "#a3a12b", "#7a4fa3", "#c3cdd6")
"""Colours of the first sources; the last one is that of all others."""
WIDE = 30
"""Largest over smallest median from which an axis is logarithmic."""


def method_profiles(comparison: MethodComparison) -> Figure:
    """Four panels with a row for all samples and one for each method.

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
    """Place in `SOURCES` of each of `count` sources: what has no colour of its own takes the last one."""
    return [min(number, len(SOURCES) - 1) for number in range(count)]


def _colour(name: str, comparison: MethodComparison) -> str:
    return SELECTED if name == comparison.selected_by else CHECKPOINT


def _figure(axis: Axes, spreads: Sequence[Spread | None], colours: Sequence[str], title: str, unit: str) -> None:
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
