"""Compute statistics over a data set: normalisations, ranks, correlations, and how well scores find labelled
samples.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.data.sample import text_digest

Vector: TypeAlias = npt.NDArray[np.float64]
Labels = Sequence[bool] | npt.NDArray[np.bool_]


def uniform(sample_id: str, seed: int) -> float:
    """Return a number in [0, 1), a multiple of 2^-53, that depends only on id and seed, not on other samples."""
    return (int(text_digest((str(seed), sample_id))[:16], 16) >> 11) / 2**53


def softmax(values: Sequence[float] | Vector) -> Vector:
    """Return exp(v - max) / Σ exp(v - max), which sums to 1 (Norm of Eqs. 2-4 and 6)."""
    vector = finite(values)
    if not vector.size:
        return vector
    # Halve before the subtraction, so that values near ±1e308 do not overflow.
    weights = np.exp(2 * np.maximum(vector / 2 - vector.max() / 2, -1e3))
    return weights / weights.sum()


def min_max(values: Sequence[float] | Vector) -> Vector:
    """Return (v - min) / (max - min), in [0, 1]; zeros if all values are equal."""
    vector = finite(values)
    if not vector.size or vector.max() == vector.min():
        return np.zeros_like(vector)
    low, high = vector.min() / 2, vector.max() / 2
    return (vector / 2 - low) / (high - low)


def finite(values: Sequence[float] | Vector) -> Vector:
    """Return the values as a float64 vector. Raise ValueError for one that is not finite, which would rank anywhere."""
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise ValueError(f"{int((~np.isfinite(vector)).sum())} of {vector.size} values are not finite")
    return vector


def average_ranks(vector: Vector) -> Vector:
    """Return the ranks, 1 for the smallest; equal values share the mean of their ranks, float64 [n].

    Polars ranks with all threads, in a third of SciPy's time. Importing `scipy.stats` would slow every command's start.
    """
    return pl.Series(vector).rank("average").cast(pl.Float64).to_numpy()


def spearman(first: Sequence[float] | Vector, second: Sequence[float] | Vector) -> float | None:
    """Return the correlation of the ranks, in [-1, 1]; None if one side is constant, since it has no order."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} scores against {len(second)}")
    return pearson(average_ranks(finite(first)), average_ranks(finite(second)))


def pearson(first: Vector, second: Vector) -> float | None:
    """Return the correlation of two float64 vectors [n], Spearman's rho if they hold ranks; None if one is constant."""
    if not first.size:
        return None
    centred = [values - values.mean() for values in (first, second)]
    norms = [float(np.linalg.norm(values)) for values in centred]
    if min(norms) == 0:
        return None
    return float(np.clip(centred[0] @ centred[1] / (norms[0] * norms[1]), -1, 1))


def auroc(scores: Sequence[float] | Vector, labels: Labels) -> float:
    """Return the probability that a labelled sample scores above another, ties counting half, in [0, 1].

    It is Mann-Whitney U / n₊n₋. Raises ValueError if the lengths differ, if a score is not finite, or if all labels are
    equal.
    """
    vector, positive = _checked(scores, labels)
    count = int(positive.sum())
    if count in (0, positive.size):
        raise ValueError("AUROC needs samples with and without the label")
    ranks = average_ranks(vector)
    above = ranks[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (positive.size - count)))


def auroc_interval(value: float, positives: int, negatives: int) -> tuple[float, float]:
    """Return the 95 % interval of an AUROC by Newcombe's method 5 (Statistics in Medicine 25, 2006, p. 559).

    It holds the values θ whose distance from `value` is at most 1.96 standard errors at θ. The variance is that of
    Hanley and McNeil with the mean number of both sides. So the interval has a width at 1, where a bootstrap has none.
    """
    theta = np.linspace(0, 1, 100_001)
    more = (positives + negatives) / 2 - 1
    factor = 1 + more * (1 - theta) / (2 - theta) + more * theta / (1 + theta)
    variance = theta * (1 - theta) * factor / (positives * negatives)
    inside = theta[(value - theta) ** 2 <= 1.959964**2 * variance + 1e-18]
    return float(inside.min()), float(inside.max())


def auroc_of_all(scores: Sequence[float] | Vector, labels: Labels) -> float:
    """Return `auroc` over all samples of a data set; samples without a score (NaN) tie below all others.

    So a method that leaves samples out is measured on all that it would choose from. Raises ValueError as `auroc` does.
    """
    vector = np.asarray(scores, dtype=np.float64)
    known = ~np.isnan(vector)
    places = np.zeros_like(vector)  # ranks begin at 1
    places[known] = average_ranks(finite(vector[known]))
    return auroc(places, labels)


def auroc_by_source(
    sources: pl.DataFrame, scores: pl.DataFrame, column: str, ground_truth: Collection[str]
) -> float | None:
    """Return `auroc_of_all` for the samples whose source is in `ground_truth`; None if all or no samples are.

    `sources`: `sample_id` and `source` str of every sample. `scores`: `sample_id` and the column f64, null or no row
    for a sample without a score.
    """
    found = sources.join(scores.select("sample_id", pl.col(column).alias("value")), on="sample_id", how="left")
    labels = found["source"].is_in(list(ground_truth)).fill_null(False).to_numpy()
    if not labels.any() or labels.all():
        return None
    return auroc_of_all(found["value"].cast(pl.Float64).fill_null(float("nan")).to_numpy(), labels)


def precision_at(scores: Sequence[float] | Vector, labels: Labels, count: int) -> float:
    """Return the share of labelled samples among the `count` best scores; ties at the border count by their expected
    share.

    Raises ValueError if the lengths differ or `count` is not between 1 and the number of samples.
    """
    vector, positive = _checked(scores, labels)
    if not 1 <= count <= vector.size:
        raise ValueError(f"precision at {count} of {vector.size} samples")
    border = np.sort(vector)[::-1][count - 1]
    above, tied = vector > border, vector == border
    share = positive[tied].mean() * (count - above.sum())
    return float((positive[above].sum() + share) / count)


def _checked(scores: Sequence[float] | Vector, labels: Labels) -> tuple[Vector, npt.NDArray[np.bool_]]:
    vector, positive = finite(scores), np.asarray(labels, dtype=np.bool_)
    if vector.shape != positive.shape:
        raise ValueError(f"{vector.size} scores, but {positive.size} labels")
    return vector, positive
