"""Drawings as the page shows them: SVG in the reader's theme, as wide as a screen and as narrow as a phone."""

import base64
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec

from gateau_dagster.plotting import DARK, INK, entitle, to_svg
from gateau_dagster.report.drawings import Drawing

NARROW = 4.6
"""Inches: a phone shows such a figure at nearly its own size."""
_CELL = 0.42  # inches that a column of a matrix takes, and those beside it
_BESIDE = 1.7
_TITLE, _LABEL = 44, 46  # characters of a line of that width
_COLOUR = re.compile("|".join(DARK))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as data URIs, and what it shows for those who do not see it. `narrow`: its panels below each other."""

    wide: str
    narrow: str
    alt: str


def pictures(drawn: Mapping[str, Drawing]) -> dict[str, Picture]:
    """The drawings as they stand in the page; the figures are stacked ones afterwards."""
    return {name: _picture(drawing) for name, drawing in drawn.items()}


def _picture(drawing: Drawing) -> Picture:
    wide = to_svg(drawing.figure)
    stack(drawing.figure)
    return Picture(wide=_uri(wide), narrow=_uri(to_svg(drawing.figure)), alt=drawing.alt)


def _uri(svg: bytes) -> str:
    """An SVG document as the `src` of an image: nothing in it can reach into the page around it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(themed(svg)).decode('ascii')}"


def themed(svg: bytes) -> bytes:
    """The document with its neutral colours as variables that have other values on a dark page (plotting.DARK)."""
    names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
    light = ";".join(f"{name}:{colour}" for colour, name in names.items())
    dark = ";".join(f"{name}:{DARK[colour]}" for colour, name in names.items())
    style = (
        f"<style>svg{{{light};fill:var({names[INK]})}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style></svg>"
    )
    text = _COLOUR.sub(lambda found: f"var({names[found.group()]})", svg.decode())
    head, end, rest = text.rpartition("</svg>")
    assert end, "an SVG document"
    return f"{head}{style}{rest}".encode()


def stack(figure: Figure) -> None:
    """Puts the figure's panels below each other, at the width of a phone, each as high as it was.

    Names that a panel leaves to its neighbour (labels that are there and hidden) are shown.
    """
    panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None and axis.get_visible()]
    rows = max((axis.get_subplotspec().get_gridspec().nrows for axis in panels), default=1)  # pyright: ignore
    height = figure.get_figheight() / rows * max(1, len(panels))
    figure.set_size_inches(max([NARROW, *(_matrix_width(axis) for axis in panels)]), height)
    grid = GridSpec(max(1, len(panels)), 1, figure=figure)
    for place, axis in enumerate(panels):
        axis.set_subplotspec(grid[place])
        axis.tick_params(labelleft=True)
        for text in (axis.xaxis.label, axis.yaxis.label):
            text.set_visible(True)
            text.set_text(textwrap.fill(text.get_text(), _LABEL))
    entitle(figure, textwrap.fill(figure.get_suptitle(), _TITLE))
    figure.set_layout_engine("constrained")


def _matrix_width(axis: Axes) -> float:
    low, high = axis.get_xlim()
    return _BESIDE + _CELL * abs(high - low) if axis.images else 0.0
