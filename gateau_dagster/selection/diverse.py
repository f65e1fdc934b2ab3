"""Diversity-preserved selection: the best samples, and the best of every cluster of embeddings besides."""

import polars as pl

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.clusters import (
    Labels,
    check_different,
    cluster_count,
    k_means,
    matrix,
    principal_components,
)


def diverse(ranked: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """n1 best samples and the n2 best of each of k clusters, each sample once (CaR; GATEAU, appendix I.3).

    n1 is `fraction` or `count`, n2 `per_cluster`. With `cluster_from: all` a cluster's best are often among the n1
    already, so that fewer than n1 + k·n2 are chosen; with `rest` they are looked for below the n1, and it is
    n1 + k·n2 as long as every cluster has so many left. Clusters are made of the scored samples that have an
    embedding; one without can only be among the n1.

    `ranked`: see rules.chosen_ids, sorted by rank, samples without a score last. Raises GateauError when there are
    fewer samples, or different embeddings, than clusters.
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
    """`sample_id` and `cluster` i64 of the samples with an embedding, the same whatever the order and the scores are.

    Raises GateauError as `diverse` does.
    """
    embedded = scored.filter(pl.col("embedding").is_not_null()).sort("sample_id")
    count = cluster_count(embedded.height, rule.clusters)
    return embedded.select("sample_id", cluster=pl.Series(clusters(embedded["embedding"], count, rule)))


def clusters(embeddings: pl.Series, count: int, rule: RuleConfig) -> Labels:
    """The cluster of each sample [n]: `rule.variance` of the embeddings' variance is clustered.

    `embeddings`: list[f32] of one length, in the order of the samples' ids.
    """
    vectors = matrix(embeddings)
    check_different(vectors, count)  # rounding may tell equal ones apart afterwards
    if count > 1:  # one cluster has no need of components, and equal vectors have none
        vectors = principal_components(vectors, rule.variance)
    return k_means(vectors, count, seed=rule.seed)[0]
