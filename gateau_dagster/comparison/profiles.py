"""What samples are like: lengths, perplexity and sources, of all and of those that a method prefers."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.comparison.orders import Mask
from gateau_dagster.comparison.result import Profile, Spread
from gateau_dagster.selection.normalise import Vector

SOURCES = 10
"""Sources that stand alone; the others are one."""
OTHERS = "(other sources)"
UNKNOWN = "(unknown)"
FIGURES = ("context_tokens", "response_tokens", "perplexity")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Figures by name, float64 [n] with NaN where unknown, and each sample's place in `sources`, int64 [n]."""

    figures: dict[str, Vector]
    sources: tuple[str, ...]
    source: NDArray[np.int64]


def read_traits(frame: pl.DataFrame) -> Traits:
    """From `source` and FIGURES of a frame; the largest `SOURCES` sources first, the others together as `OTHERS`."""
    sources = frame["source"].fill_null(UNKNOWN)
    sizes = sources.value_counts(name="size").sort(["size", "source"], descending=[True, False])
    names = sizes["source"].to_list()
    kept = names if len(names) <= SOURCES + 1 else names[:SOURCES]
    place = {name: min(number, len(kept)) for number, name in enumerate(names)}
    return Traits(
        figures={name: frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in FIGURES},
        sources=tuple(kept) if len(kept) == len(names) else (*kept, OTHERS),
        source=sources.replace_strict(place, return_dtype=pl.Int64).to_numpy(),
    )


def profile(traits: Traits, rows: Mask) -> Profile:
    """The samples of `rows`, bool [n]."""
    count = int(rows.sum())
    spreads = {name: spread(values[rows]) for name, values in traits.figures.items()}
    counts = np.bincount(traits.source[rows], minlength=len(traits.sources))
    return Profile(samples=count, sources=tuple(float(size) / max(1, count) for size in counts), **spreads)


def spread(values: Vector) -> Spread | None:
    """Mean and quartiles of the finite `values` (linear between neighbours); None when there is none."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, median, high = (float(value) for value in np.quantile(known, (0.25, 0.5, 0.75)))
    return Spread(known=known.size, mean=float(known.mean()), low=low, median=median, high=high)
