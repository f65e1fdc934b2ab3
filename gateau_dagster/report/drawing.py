"""A plot on its way to the page."""

from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot, and what it shows for those who do not see it."""

    figure: Figure
    alt: str
