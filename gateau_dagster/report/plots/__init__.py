"""Draw the plots of the report and of Dagster's metadata."""

from typing import NamedTuple

from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """A plot and its alternative text."""

    figure: Figure
    alt: str
