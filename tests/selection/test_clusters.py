"""Clusters of embeddings, and the selection that keeps them all, against plain loops."""

import math
from collections.abc import Collection

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.clusters import (
    Matrix,
    cluster_count,
    clusters,
    k_means,
    principal_components,
    with_clusters,
)
from gateau_dagster.selection.rules import chosen_ids
from tests.kit.error_codes import refused
from tests.selection.builders import ranking, slow_diverse


def blobs(seed: int = 0, each: int = 8, dimensions: int = 5) -> tuple[Matrix, list[int]]:
    """Points around four far corners, mixed, and the corner of each."""
    rng = np.random.default_rng(seed)
    corners = 50 * np.eye(4, dimensions)
    order = rng.permutation(4 * each)
    places = [int(number) % 4 for number in order]
    return corners[places] + rng.normal(size=(4 * each, dimensions)), places


def test_the_number_of_clusters_is_that_of_the_paper() -> None:
    assert cluster_count(10_000) == 70
    assert [cluster_count(n) for n in range(1, 30)] == [max(1, math.floor(math.sqrt(n / 2))) for n in range(1, 30)]
    assert cluster_count(10, 10) == 10
    with refused("selection.clusters", "10.*11.*10"):
        cluster_count(10, 11)


def test_k_means_finds_clusters_that_are_apart() -> None:
    points, places = blobs()
    labels, centres = k_means(points, 4, seed=1)
    assert len({(label, place) for label, place in zip(labels, places, strict=True)}) == 4
    for label in range(4):
        mine = [point for point, other in zip(points, labels, strict=True) if other == label]
        np.testing.assert_allclose(centres[label], sum(mine) / len(mine), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_k_means_ends_where_no_step_of_lloyd_changes_anything(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(80, 3))
    labels, centres = k_means(points, 6, seed=seed)
    for point, label in zip(points, labels, strict=True):
        distances = [math.dist(point, centre) for centre in centres]
        assert distances[label] == pytest.approx(min(distances), rel=1e-9)
    for label in range(6):
        np.testing.assert_allclose(points[labels == label].mean(axis=0), centres[label], atol=1e-9)


def test_k_means_is_the_same_twice_and_another_with_another_seed() -> None:
    points = np.random.default_rng(5).normal(size=(90, 4))
    first = k_means(points, 7, seed=3)
    for mine, again in zip(first, k_means(points, 7, seed=3), strict=True):
        np.testing.assert_array_equal(mine, again)
    assert not np.array_equal(first[1], k_means(points, 7, seed=4)[1])


def test_fewer_different_points_than_clusters_are_an_error() -> None:
    points = np.repeat(np.eye(3), 10, axis=0)
    with refused("selection.clusters", "30.*3.*4"):
        k_means(points, 4, seed=0)
    assert len(set(k_means(points, 3, seed=0)[0].tolist())) == 3


@pytest.mark.parametrize("variance", [0.3, 0.8, 0.95, 1.0])
def test_principal_components_are_those_of_the_covariance(variance: float) -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(60, 6)) * [9, 5, 3, 1, 0.5, 0.1]
    centred = points - points.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred / 59)
    order = np.argsort(-values)
    kept = 0
    while variance < 1 and sum(values[order[:kept]]) / values.sum() < variance:
        kept += 1
    wanted = centred @ directions[:, order[: kept or 6]]
    found = principal_components(points, variance)
    assert found.shape == wanted.shape
    for mine, theirs in zip(found.T, wanted.T, strict=True):
        sign = np.sign(mine @ theirs)  # a direction has no sign
        np.testing.assert_allclose(mine, sign * theirs, atol=1e-9)


def samples(without: Collection[int] = (), unscored: Collection[int] = ()) -> tuple[pl.DataFrame, list[int]]:
    """32 samples in four clusters, those in `without` with no embedding; and the cluster of each."""
    points, places = blobs()
    embedding = [None if number in without else row for number, row in enumerate(points.tolist())]
    column = pl.Series(embedding, dtype=pl.List(pl.Float32))
    return ranking(["law"] * len(places), unscored=unscored, embedding=column), places


def rule(count: int = 3, **fields: object) -> RuleConfig:
    return RuleConfig.model_validate({"rule": "diverse", "encoder": "mini", "count": count, "clusters": 4, **fields})


@pytest.mark.parametrize("cluster_from", ["all", "rest"])
@pytest.mark.parametrize("per_cluster", [0, 1, 2, 9])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_the_best_and_the_best_of_every_cluster(cluster_from: str, per_cluster: int, count: int) -> None:
    frame, places = samples(without={0, 9}, unscored={1, 12})
    labels = {f"s{number:02d}": place for number, place in enumerate(places) if number not in {0, 9, 1, 12}}
    wanted = rule(count, per_cluster=per_cluster, cluster_from=cluster_from)
    found = chosen_ids(frame, wanted)
    assert found == slow_diverse(frame, labels, wanted)
    assert len(found) == len(set(found))


def test_the_number_of_clusters_follows_the_data() -> None:
    """32 samples make sqrt(16) clusters, which are the four of the data."""
    frame, _ = samples()
    assert chosen_ids(frame, rule(1, clusters=None)) == chosen_ids(frame, rule(1))


def test_clusters_are_the_same_whatever_the_ranking_is() -> None:
    points = np.random.default_rng(4).normal(size=(60, 5))
    frame = pl.DataFrame({"sample_id": [f"s{number:02d}" for number in range(60)], "embedding": points.tolist()})
    found = with_clusters(frame, rule(clusters=6))
    assert found["cluster"].n_unique() == 6
    assert with_clusters(frame.reverse(), rule(clusters=6)).equals(found)


def test_one_cluster_needs_no_components() -> None:
    frame = samples()[0].with_columns(embedding=pl.lit([1.0, 2.0], pl.List(pl.Float32)))
    assert chosen_ids(frame, rule(2, clusters=1, cluster_from="rest")) == ["s00", "s01", "s02"]
    with refused("selection.clusters", "32.*1.*2"):
        chosen_ids(frame, rule(2, clusters=2))


def test_fewer_embedded_samples_than_clusters_are_an_error() -> None:
    frame, _ = samples(without=set(range(29)))
    with refused("selection.clusters", "3.*4"):
        chosen_ids(frame, rule())


def test_components_that_carry_little_do_not_make_clusters() -> None:
    """Twins that differ in a direction with 2 % of the variance are together, unless all of it is asked for."""
    rng = np.random.default_rng(0)
    along = np.repeat([0.0, 100.0], 10) + rng.uniform(0, 10, 20)
    points = np.column_stack([np.tile(along, 2), np.repeat([0.0, 14.0], 20)])
    column = pl.Series(points.tolist())
    labels = clusters(column, 4, rule())
    np.testing.assert_array_equal(labels[:20], labels[20:])
    every = clusters(column, 4, rule(variance=1.0))
    assert (every[:20] != every[20:]).all()
