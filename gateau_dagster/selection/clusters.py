"""Cluster samples by their embeddings (principal components and k-means), and select from every cluster.

The same data give the same clusters on every run.
"""

# Clusters must be the same on every run and machine, or the choice would change without a reason. So rows are sorted by
# id, the seed is fixed, and one thread adds up. The price is speed.
#
# The number of clusters follows the data, sqrt(n/2), as in the paper. Components first: distances in hundreds of
# dimensions differ little, and k-means is linear in them.

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError

Matrix = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def diverse(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return the n1 best samples and the n2 best of each of k clusters, each sample once (CaR; GATEAU, appendix I.3).

    n1 is `fraction` or `count`, n2 `per_cluster`. With `cluster_from: all`, a cluster's best are often among the n1, so
    fewer than n1 + k·n2 samples are chosen. With `rest` they are taken from below the n1, which gives n1 + k·n2 if
    every cluster has enough left. Clusters are made of the scored samples with an embedding; a sample without one can
    only be among the n1.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last. Raises GateauError if there are fewer
    samples, or fewer different embeddings, than clusters.
    """
    scored = ranked.filter(pl.col("score").is_not_null())
    clustered = with_clusters(scored, rule)
    best = rule.chosen(scored.height)
    pool = scored if rule.cluster_from == "all" else scored.slice(best)
    of_clusters = (
        pool.join(clustered, on="sample_id", maintain_order="left")
        .filter(pl.int_range(pl.len()).over("cluster") < rule.per_cluster)
        .get_column("sample_id")
    )
    first = pl.int_range(pl.len()) < best
    return scored.filter(first | pl.col("sample_id").is_in(of_clusters.implode()))


def with_clusters(scored: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return `sample_id` and `cluster` i64 of samples with an embedding, whatever their order and scores are.

    Raises GateauError as `diverse` does.
    """
    embedded = scored.filter(pl.col("embedding").is_not_null()).sort("sample_id")
    count = cluster_count(embedded.height, rule.clusters)
    return embedded.select("sample_id", cluster=pl.Series(clusters(embedded["embedding"], count, rule)))


def clusters(embeddings: pl.Series, count: int, rule: RuleConfig) -> Labels:
    """Return the cluster of each sample [n], from components that keep `rule.variance` of the embeddings' variance.

    `embeddings`: list[f32] of one length, in the order of the samples' ids.
    """
    vectors = matrix(embeddings)
    check_different(vectors, count)  # checked first, because rounding may make equal ones differ afterwards
    if count > 1:  # one cluster needs no components, and equal vectors have none
        vectors = principal_components(vectors, rule.variance)
    return k_means(vectors, count, seed=rule.seed)[0]


def cluster_count(samples: int, wanted: int | None = None) -> int:
    """Return `wanted`, or sqrt(n/2) rounded down: 70 for 10,000, as in GATEAU (appendix I.3); at least one.

    Raises GateauError if there are fewer samples than clusters.
    """
    count = max(1, math.isqrt(samples // 2)) if wanted is None else wanted
    if samples < count:
        raise GateauError(
            "selection.clusters",
            f"{samples} samples cannot form {count} clusters: lower the number to {samples} or less, or give more "
            "samples",
        )
    return count


def matrix(vectors: pl.Series) -> Matrix:
    """Return a column of lists of one length d as float64 [n, d]."""
    rows = vectors.len()
    assert vectors.null_count() == 0 and vectors.list.len().n_unique() <= 1
    return vectors.explode().cast(pl.Float64).to_numpy().reshape(rows, -1)


def check_different(vectors: Matrix, count: int) -> None:
    """Raise GateauError if `vectors` [n, d] has fewer rows, or fewer different ones, than the clusters requested."""
    cluster_count(len(vectors), count)
    different = len(np.unique(vectors, axis=0))
    if different < count:
        raise GateauError(
            "selection.clusters",
            f"{len(vectors)} samples have {different} different embeddings, which cannot form {count} clusters: "
            f"lower the number to {different} or less, or remove repeated samples",
        )


def principal_components(vectors: Matrix, variance: float) -> Matrix:
    """Return the fewest first components [n, e] of `vectors` [n, d] that keep this share of their variance (1: all)."""
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    assert len(vectors) > 1 and np.isfinite(vectors).all()
    with threadpool_limits(1):
        return PCA(variance if variance < 1 else None, svd_solver="full").fit_transform(vectors)


def k_means(vectors: Matrix, count: int, *, seed: int) -> tuple[Labels, Matrix]:
    """Return the cluster of each row of `vectors` [n, d], 0 to `count` - 1, and the clusters' centres [count, d].

    The result of k-means depends on the rows' order: sort them by id. It uses one thread, because several would add up
    their sums in a different order each time.

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
