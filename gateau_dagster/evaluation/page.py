"""A benchmark's part of the report as plain data, which the page's template formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A plot: its name in Dagster, an alternative text, and how to read it."""

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of some columns of `frame`; collapsed under the heading `folded`, if that is given.

    columns: their headings by name. shares: those with numbers in 0..1, which are shown as percentages.
    """

    frame: pl.DataFrame
    columns: Mapping[str, str]
    shares: Collection[str] = ()
    folded: str = ""

    @property
    def texts(self) -> list[str]:
        """Return the columns that hold no numbers."""
        return self.frame.select(pl.col(pl.String)).columns


@dataclass(frozen=True, kw_only=True)
class PageAmount:
    """A bar of a chart.

    low, high: the ends of its interval, where there is one. reference: drawn as the reference for the others.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    reference: bool = False


@dataclass(frozen=True, kw_only=True)
class PageChart:
    """A few amounts side by side, the most important first, small enough for an asset's page.

    name: what the amounts are, with their unit. share: whether they are numbers in 0..1, shown as percentages.
    """

    name: str
    amounts: Sequence[PageAmount]
    share: bool = False


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """The content below the benchmark's title: sentences, then figures, then tables.

    headline: for the top of the report. chart: for the asset's page, where figures open with a click.
    """

    sentences: Sequence[str]
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    headline: str = ""
    chart: PageChart | None = None
