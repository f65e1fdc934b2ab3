"""k-means and principal components against plain NumPy, and the same on every run."""

import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.selection.clusters import Matrix, cluster_count, k_means, matrix, principal_components


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
    with pytest.raises(GateauError, match="10 samples cannot make 11 clusters: ask for at most 10"):
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
    with pytest.raises(GateauError, match="30 samples have 3 different embeddings, which cannot make 4 clusters"):
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


def test_lists_become_a_matrix() -> None:
    column = pl.Series([[1.0, 2.5], [3.0, -1.0]], dtype=pl.List(pl.Float32))
    found = matrix(column)
    assert found.dtype == np.float64 and found.tolist() == [[1.0, 2.5], [3.0, -1.0]]
