"""Draw figures: the common style, values on axes, and export to SVG and Markdown."""

import base64
import logging
import math
import re
from collections.abc import Sequence
from io import BytesIO
from unicodedata import east_asian_width

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

INK, MUTED, GRID, FRAME, FAINT = "#1b2733", "#5b6b7a", "#e6ebf0", "#b9c4ce", "#eef1f4"
# Letters on a coloured ground: unlike all other letters, they are the same on light and dark pages.
ON_LIGHT, ON_DARK = "#1b2734", "#fefefe"
# The neutral colours on a dark page; those of the data are readable on both.
DARK = {INK: "#e3e9ef", MUTED: "#9badbd", GRID: "#2a343e", FRAME: "#4a5763", FAINT: "#222c35", "#ffffff": "#161d24"}
# Okabe and Ito's colours, the light ones slightly darkened to be readable on white.
PRESET_COLOURS = {"paper": "#b7588c", "official": "#d08700", "robust": "#0072b2"}
FAR, OTHER = "#d55e00", "#8fb8d6"
BASE, CHECKPOINT = "#8996a3", "#0072b2"
SELECTED, ALL = "#009e73", "#c3cdd6"


def new_figure(
    title: str, *, columns: int = 1, width: float = 10.2, height: float = 3.4
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure of `width` x `height` inches with `columns` panels side by side, and its title at the top left.

    It is made without pyplot, which has global state, so that any thread can draw plots.
    """
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    entitle(figure, title)
    for axis in axes:
        _clean(axis)
    return figure, list(axes)


def entitle(figure: Figure, title: str) -> None:
    """Write the figure's title at its top left."""
    figure.suptitle(title, x=0.008, ha="left", fontsize=12, fontweight="bold", color=INK)


def _clean(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(FRAME)
    axis.tick_params(colors=MUTED, labelsize=8.5, length=3)
    axis.grid(True, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)


def label(axis: Axes, *, x: str, y: str, title: str | None = None) -> None:
    """Label the axes, with units."""
    axis.set_xlabel(x, fontsize=9.5, color=INK)
    axis.set_ylabel(y, fontsize=9.5, color=INK)
    if title is not None:
        axis.set_title(title, fontsize=10, color=INK, loc="left")


def legend(axis: Axes, **options: object) -> None:
    """Draw a legend without a box."""
    axis.legend(frameon=False, fontsize=8.5, labelcolor=INK, **options)  # type: ignore[arg-type]


def say(axis: Axes, text: str) -> None:
    """Write `text` into an empty panel, which would look like an error without it."""
    axis.grid(False)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, fontsize=10, transform=axis.transAxes)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


def shortened(name: str, *, most: int = 26) -> str:
    """Return a name that fits next to an axis: at most `most` characters of its two ends, or half as many if they are
    wide like Chinese ones. No `$` starts a formula, and no control character breaks an SVG.
    """
    if any(east_asian_width(character) in "WF" for character in name):
        most //= 2
    short = name if len(name) <= most else f"{name[: most - 9]}…{name[-8:]}"
    return _CONTROL.sub("\ufffd", short).replace("$", r"\$")


Array = NDArray[np.float64]


def finite(frame: pl.DataFrame, column: str) -> Array:
    """Return the finite values of a column, float64; null, NaN and infinite values are left out."""
    values = frame[column].cast(pl.Float64).drop_nulls().to_numpy()
    return values[np.isfinite(values)]


def finite_pairs(frame: pl.DataFrame, x: str, y: str) -> pl.DataFrame:
    """Return the rows where both columns are finite."""
    both = [pl.col(name).cast(pl.Float64).is_finite().fill_null(False) for name in (x, y)]
    return frame.filter(*both)


def edges(values: Array, *, most: int = 60) -> Array:
    """Return edges of histogram bins that cover `values` [n]; at most `most` bins, more for more values (Rice's rule).

    Equal values get one bin around them. The span may be as small as 1e-12 (a softmax over a large data set).
    """
    if values.size == 0:
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    bins = min(most, max(5, math.ceil(2 * values.size ** (1 / 3))))
    spread = high - low
    smallest = np.spacing(max(abs(low), abs(high))) * 4 * bins
    if spread <= smallest:
        half = max(abs(low) * 0.01, smallest, 1e-12)
        return np.array([low - half, high + half])
    return np.linspace(low, high, bins + 1)


def log_edges(values: Array, *, most: int = 40) -> Array:
    """Return edges of bins that are equally wide on a logarithmic axis; values below 1 count as 1."""
    counted = np.maximum(values, 1.0)
    bins = np.exp(edges(np.log(counted), most=most))
    if counted.size:  # exp(log(x)) may be a rounding error below x, which would lose the outermost samples
        bins[0], bins[-1] = min(bins[0], counted.min()), max(bins[-1], counted.max())
    return bins


SVG_LIMIT = 200_000
"""In bytes: Dagster keeps metadata in its event log, where large values make every page slow."""


_FAMILIES = ["DejaVu Sans", "Verdana", "sans-serif"]
"""The layout is computed with the first font, which is among the widest, so that the text fits in the others too."""
_LAST_RESORT = "Last Resort High-Efficiency"
"""Part of Matplotlib; it gives letters that the first font lacks, such as Chinese ones, a square of room."""
# It has no bold letters, and Matplotlib would print so.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def to_svg(figure: Figure) -> bytes:
    """Return the figure as an SVG document (UTF-8). Equal figures give equal bytes: no date, no random ids.

    Words are text, which the reader's machine draws in any script. As outlines they took more than half of the report.
    """
    buffer = BytesIO()
    for text in figure.findobj(Text):
        text.set_fontfamily(["sans-serif", _LAST_RESORT])  # pyright: ignore[reportAttributeAccessIssue]
    with mpl.rc_context({"svg.hashsalt": "gateau", "svg.fonttype": "none", "font.sans-serif": _FAMILIES}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    # Keep the layout, which takes half of the drawing time, for the next time that the figure is drawn.
    figure.set_layout_engine("none")
    return buffer.getvalue()


def to_png(figure: Figure) -> bytes:
    """Return the figure as a PNG image, for pages that do not show SVG, such as the hub's."""
    buffer = BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def as_markdown_image(svg: bytes, *, alt: str = "plot") -> str:
    """Return Markdown that shows the SVG document from a data URI, for Dagster's metadata; above `SVG_LIMIT`, a
    sentence.
    """
    safe = "".join(character for character in alt if character not in "[]()\n")
    if len(svg) > SVG_LIMIT:
        return f"{safe}: the figure has {len(svg):,} bytes, more than {SVG_LIMIT:,}, and is in the report only."
    return f"![{safe}](data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')})"
