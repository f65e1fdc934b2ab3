"""Normalisations over a data set: all take and return float64 vectors [|D|]."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

Vector: TypeAlias = npt.NDArray[np.float64]


def softmax(values: Sequence[float] | Vector) -> Vector:
    """exp(v - max) / Σ exp(v - max); sums to 1 (Norm of Eqs. 2-4 and 6)."""
    vector = finite(values)
    if not vector.size:
        return vector
    # Halved before the subtraction, so that values near ±1e308 do not overflow.
    weights = np.exp(2 * np.maximum(vector / 2 - vector.max() / 2, -1e3))
    return weights / weights.sum()


def min_max(values: Sequence[float] | Vector) -> Vector:
    """(v - min) / (max - min), in [0, 1]; zeros where all values are equal, since none stands out."""
    vector = finite(values)
    if not vector.size or vector.max() == vector.min():
        return np.zeros_like(vector)
    low, high = vector.min() / 2, vector.max() / 2
    return (vector / 2 - low) / (high - low)


def average_ranks(vector: Vector) -> Vector:
    """1 is the smallest; equal values share the mean of their ranks, float64 [n].

    By Polars, with all threads: a third of SciPy's time, and importing `scipy.stats` would slow every command's start.
    """
    return pl.Series(vector).rank("average").cast(pl.Float64).to_numpy()


def finite(values: Sequence[float] | Vector) -> Vector:
    """The values as a float64 vector. Raises ValueError for one that is not finite, which would rank anywhere."""
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise ValueError(f"{int((~np.isfinite(vector)).sum())} of {vector.size} values are not finite")
    return vector
