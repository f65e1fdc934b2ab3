"""Plot of the relative distances that training sees, with plain and with skipped positions (SkipAlign, Figure 2)."""

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from gateau_dagster.plotting import FAR, OTHER, label, legend, new_figure, say

_DEEPEST = 1e-4
"""Share, of the largest one, below which the logarithmic axis of shares does not go."""


def relative_distances(table: pl.DataFrame) -> Figure:
    """Two views of the same shares, as skipping moves them: the whole range of distances, and the short ones enlarged.

    Args:
        table: a row a bin of distances with `first` (included), `end` (excluded), and `before` and `after`, shares of
            the samples; see `training.relative_distances`.
    """
    figure, (whole, close) = new_figure("Relative distances before and after skipping positions", columns=2)
    if table.select(pl.max_horizontal("before", "after").max()).item() in {None, 0.0}:
        for axis in (whole, close):
            say(axis, "no sample has a response to learn")
        return figure
    for axis in (whole, close):
        _shares(axis, table)
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


def _shares(axis: Axes, table: pl.DataFrame) -> None:
    """Plain positions as an area, skipped ones as a line over it: where they agree both stay visible."""
    edges = np.append(table["first"].to_numpy(), table["end"][-1]).astype(float)
    axis.stairs(100 * table["before"].to_numpy(), edges, fill=True, color=OTHER, label="plain positions")
    axis.stairs(100 * table["after"].to_numpy(), edges, color=FAR, linewidth=1.8, baseline=None, label="skipped")


def _share_limits(table: pl.DataFrame) -> tuple[float, float]:
    """Limits of a logarithmic axis in percent: all shares but those less than 1/10,000 of the largest one."""
    shares = 100 * np.concatenate([table["before"].to_numpy(), table["after"].to_numpy()])
    top = float(shares.max())
    smallest = float(shares[shares > top * _DEEPEST].min())
    return smallest / 2, top * 1.5
