"""Plot of what was selected."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from gateau_dagster.plotting import ALL, SELECTED, finite, label, legend, log_edges, new_figure, say


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
