"""Numbers out of frames, in the shape that plots need: finite, aggregated, never one mark per sample of 100,000."""

import math

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[np.float64]


def finite(frame: pl.DataFrame, column: str) -> Array:
    """The finite values of a column, float64; null, NaN and infinite ones are left out."""
    values = frame[column].cast(pl.Float64).drop_nulls().to_numpy()
    return values[np.isfinite(values)]


def finite_pairs(frame: pl.DataFrame, x: str, y: str) -> pl.DataFrame:
    """The rows where both columns are finite."""
    both = [pl.col(name).cast(pl.Float64).is_finite().fill_null(False) for name in (x, y)]
    return frame.filter(*both)


def edges(values: Array, *, most: int = 60) -> Array:
    """Edges of histogram bins that cover `values` [n]; at most `most` bins, more for more values (Rice's rule).

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
    """Edges of bins that are equally wide on a logarithmic axis; values below 1 count as 1."""
    counted = np.maximum(values, 1.0)
    bins = np.exp(edges(np.log(counted), most=most))
    if counted.size:  # exp(log(x)) may fall a rounding short of x, which would lose the outermost samples
        bins[0], bins[-1] = min(bins[0], counted.min()), max(bins[-1], counted.max())
    return bins
