from collections.abc import Collection

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.diverse import clusters, with_clusters
from gateau_dagster.selection.rules import chosen_ids
from tests.selection.slow_rules import ranking, slow_diverse
from tests.selection.test_clusters import blobs


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


def test_from_the_rest_every_cluster_adds_its_own() -> None:
    frame, _ = samples()
    assert len(chosen_ids(frame, rule(10, cluster_from="rest"))) == 10 + 4
    assert 10 <= len(chosen_ids(frame, rule(10))) < 10 + 4


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
    with pytest.raises(GateauError, match="32 samples have 1 different embeddings, which cannot make 2 clusters"):
        chosen_ids(frame, rule(2, clusters=2))


def test_fewer_embedded_samples_than_clusters_are_an_error() -> None:
    frame, _ = samples(without=set(range(29)))
    with pytest.raises(GateauError, match="3 samples cannot make 4 clusters"):
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
