"""What a benchmark shows in the report, as plain data: the page's template gives it its form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A plot: its name in Dagster, what it shows for those who do not see it, and how to read it."""

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class PageColumn:
    """A column of `PageTable.frame` under its heading; `share`: a number in 0..1 as a percentage."""

    name: str
    title: str
    style: Literal["text", "number", "share"] = "number"


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """These columns of `frame`, row by row; folded away under `folded`, where that is given."""

    frame: pl.DataFrame
    columns: Sequence[PageColumn]
    folded: str = ""


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """Below the benchmark's title: sentences, then figures, then tables. `headline`: for the top of the page."""

    sentences: Sequence[str]
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    headline: str = ""
