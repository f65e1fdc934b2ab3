"""Clusters of samples by their embeddings: principal components and k-means, the same on every run."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.errors import GateauError

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def cluster_count(samples: int, wanted: int | None = None) -> int:
    """`wanted`, or sqrt(n/2) rounded down: 70 of 10,000, as GATEAU counts them (appendix I.3); at least one.

    Raises GateauError when there are fewer samples than clusters.
    """
    count = max(1, math.isqrt(samples // 2)) if wanted is None else wanted
    if samples < count:
        raise GateauError(
            f"{samples} samples cannot make {count} clusters: ask for at most {samples} clusters, or give more samples"
        )
    return count


def matrix(vectors: pl.Series) -> Matrix:
    """A column of lists of one length d as float64 [n, d]."""
    rows = vectors.len()
    assert vectors.null_count() == 0 and vectors.list.len().n_unique() <= 1
    return vectors.explode().cast(pl.Float64).to_numpy().reshape(rows, -1)


def check_different(vectors: Matrix, count: int) -> None:
    """Raises GateauError when `vectors` [n, d] has fewer rows, or fewer different ones, than clusters are wanted."""
    cluster_count(len(vectors), count)
    different = len(np.unique(vectors, axis=0))
    if different < count:
        raise GateauError(
            f"{len(vectors)} samples have {different} different embeddings, which cannot make {count} clusters: ask "
            f"for at most {different}, or remove samples that stand in the data several times"
        )


def principal_components(vectors: Matrix, variance: float) -> Matrix:
    """The fewest first components [n, e] of `vectors` [n, d] that keep this share of their variance (1: all)."""
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    assert len(vectors) > 1 and np.isfinite(vectors).all()
    with threadpool_limits(1):
        return PCA(variance if variance < 1 else None, svd_solver="full").fit_transform(vectors)


def k_means(vectors: Matrix, count: int, *, seed: int) -> tuple[Labels, Matrix]:
    """The cluster of each row of `vectors` [n, d], 0 to `count` - 1, and the clusters' centres [count, d].

    Depends on the rows' order, as k-means does: sort them by id. One thread does it: several would add their sums up
    in another order each time.

    Raises:
        GateauError: see check_different.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    check_different(vectors, count)
    assert np.isfinite(vectors).all()
    with threadpool_limits(1):
        found: Any = KMeans(count, random_state=seed, n_init=1).fit(vectors)  # pyright: ignore[reportArgumentType]
    return found.labels_.astype(np.int64), found.cluster_centers_
