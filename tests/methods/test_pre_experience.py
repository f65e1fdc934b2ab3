"""The samples of a pre-experienced model: some of each cluster, whatever the rows' order."""

import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.pre_experience import (
    INSTRUCTION_EMBEDDING,
    PreExperienceOptions,
    instruction_embedding_table,
    pre_experience_sample,
)
from gateau_dagster.methods.random_order import uniform
from gateau_dagster.tables import schema
from tests.scoring.scored import running
from tests.selection.test_clusters import blobs
from tests.tiny_models import loaded_model, samples


def embeddings() -> tuple[pl.DataFrame, dict[str, int], dict[str, list[float]]]:
    """32 samples in four groups; the group and the point of each."""
    points, places = blobs(each=8)
    ids = [f"s{number:02d}" for number in range(32)]
    frame = pl.DataFrame(
        {"sample_id": ids, "embedding": points.tolist()}, schema_overrides={"embedding": pl.List(pl.Float32)}
    )
    exact = dict(zip(ids, frame["embedding"].to_list(), strict=True))
    return frame, dict(zip(ids, places, strict=True)), exact


def options(**fields: object) -> PreExperienceOptions:
    return PreExperienceOptions.model_validate({"clusters": 4, "per_cluster": 3, **fields})


@pytest.mark.parametrize("seed", [0, 7])
def test_the_lot_draws_of_each_cluster(seed: int) -> None:
    frame, groups, _ = embeddings()
    wanted = []
    for group in range(4):
        mine = sorted((one for one in groups if groups[one] == group), key=lambda one: uniform(one, seed))
        wanted += mine[:3]
    assert pre_experience_sample(frame, options(seed=seed))["sample_id"].to_list() == sorted(wanted)


def test_the_nearest_of_each_cluster() -> None:
    frame, groups, points = embeddings()
    wanted = []
    for group in range(4):
        mine = [one for one in groups if groups[one] == group]
        centre = [math.fsum(values) / len(mine) for values in zip(*(points[one] for one in mine), strict=True)]
        wanted += sorted(mine, key=lambda one: math.dist(points[one], centre))[:3]
    assert pre_experience_sample(frame, options(pick="nearest"))["sample_id"].to_list() == sorted(wanted)


@pytest.mark.parametrize("pick", ["random", "nearest"])
def test_the_order_of_the_rows_does_not_matter(pick: str) -> None:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {"sample_id": [f"s{number:03d}" for number in range(120)], "embedding": rng.normal(size=(120, 4)).tolist()}
    )
    wanted = options(clusters=7, pick=pick)
    found = pre_experience_sample(frame, wanted)
    assert pre_experience_sample(frame.sample(fraction=1, shuffle=True, seed=4), wanted).equals(found)
    assert found.group_by("cluster").len()["len"].max() == 3 and found["cluster"].n_unique() == 7


def test_a_small_cluster_gives_all_it_has() -> None:
    frame, groups, _ = embeddings()
    assert pre_experience_sample(frame, options(per_cluster=10)).height == len(groups)


def test_fewer_samples_than_clusters_are_an_error() -> None:
    assert PreExperienceOptions().clusters == 100 and PreExperienceOptions().per_cluster == 10
    with pytest.raises(GateauError, match="32 samples cannot make 100 clusters"):
        pre_experience_sample(embeddings()[0], PreExperienceOptions())


def test_the_table_makes_the_models_rows() -> None:
    table = instruction_embedding_table("long")
    assert (table.asset, table.model) == ("instruction_embedding/long", "long")
    rows = list(table.score(loaded_model("llama"), samples(), running()))
    assert not any(isinstance(row, Reject) for row in rows)
    made = pl.DataFrame(rows, schema=schema(INSTRUCTION_EMBEDDING))
    assert made["embedding"].list.len().to_list() == [64] * len(samples())
    assert pre_experience_sample(made, options(clusters=2, per_cluster=9)).height == len(samples())
