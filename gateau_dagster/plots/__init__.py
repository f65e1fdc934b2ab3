"""Draw the tables of scores, comparisons and training, for the page and for the metadata of Dagster."""

from typing import NamedTuple

from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """A plot and its alternative text."""

    figure: Figure
    alt: str
