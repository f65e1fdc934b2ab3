"""The samples of a pre-experienced model: some of each cluster, whatever the rows' order."""

import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.pre_experience import (
    INSTRUCTION_EMBEDDING,
    PreExperienceOptions,
    in_the_middle,
    instruction_embedding_table,
    pre_experience_sample,
)
from gateau_dagster.selection.statistics import uniform
from gateau_dagster.tables import schema
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples
from tests.scoring.builders import running
from tests.selection.test_clusters import blobs


def embeddings() -> tuple[pl.DataFrame, dict[str, int], dict[str, list[float]]]:
    """32 samples in four groups, in no order; the group and the point of each."""
    points, places = blobs(each=8)
    ids = [f"s{number:02d}" for number in range(32)]
    perplexity = np.random.default_rng(3).permutation(32) + 1.5
    frame = pl.DataFrame(
        {"sample_id": ids, "embedding": points.tolist(), "perplexity": perplexity},
        schema_overrides={"embedding": pl.List(pl.Float32)},
    )
    exact = dict(zip(ids, frame["embedding"].to_list(), strict=True))
    return frame.sample(fraction=1, shuffle=True, seed=4), dict(zip(ids, places, strict=True)), exact


def options(**fields: object) -> PreExperienceOptions:
    return PreExperienceOptions.model_validate({"clusters": 4, "per_cluster": 3, **fields})


def slow_percentile(values: list[float], percent: int) -> float:
    """Between the two values about it, by the distance to them."""
    ordered = sorted(values)
    place = percent * (len(ordered) - 1) / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def slow_middle(members: list[str], perplexity: dict[str, float], most: int) -> list[str]:
    """A cluster's samples that the authors' program takes; `members` in the order of the data."""
    if len(members) < most:
        return members
    values = [perplexity[one] for one in members]
    low, high = slow_percentile(values, 25), slow_percentile(values, 75)
    middle = [one for one in members if low <= perplexity[one] <= high]
    if len(middle) < most:
        return middle
    step = len(middle) // most
    return [middle[number * step] for number in range(most)]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 8, 9])
def test_evenly_through_the_middle_of_each_cluster(most: int) -> None:
    frame, groups, _ = embeddings()
    perplexity = dict(frame.select("sample_id", "perplexity").iter_rows())
    found = pre_experience_sample(frame, options(per_cluster=most))
    assert PreExperienceOptions().pick == "middle" and found["cluster"].n_unique() == 4
    wanted = []
    for group in range(4):
        wanted += slow_middle([one for one in sorted(groups) if groups[one] == group], perplexity, most)
    assert found["sample_id"].to_list() == sorted(wanted)


@pytest.mark.parametrize("most", [1, 3, 10])
def test_the_middle_of_clusters_of_any_size_and_with_equal_perplexities(most: int) -> None:
    rng = np.random.default_rng(most)
    for ties in (False, True):
        values = rng.integers(1, 5, 150).astype(np.float64) if ties else rng.lognormal(2, 2, 150)
        labels = rng.choice(9, 150, p=rng.dirichlet(np.ones(9)))
        ids = [f"s{number:03d}" for number in range(150)]
        perplexity, wanted = dict(zip(ids, values.tolist(), strict=True)), []
        for cluster in range(9):
            members = [one for one, label in zip(ids, labels, strict=True) if label == cluster]
            wanted += slow_middle(members, perplexity, most) if members else []
        taken = in_the_middle(values, labels, most)
        assert [one for one, kept in zip(ids, taken, strict=True) if kept] == sorted(wanted)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_lot_draws_of_each_cluster(seed: int) -> None:
    frame, groups, _ = embeddings()
    wanted = []
    for group in range(4):
        mine = sorted((one for one in groups if groups[one] == group), key=lambda one: uniform(one, seed))
        wanted += mine[:3]
    assert pre_experience_sample(frame, options(pick="random", seed=seed))["sample_id"].to_list() == sorted(wanted)


def test_the_nearest_of_each_cluster() -> None:
    frame, groups, points = embeddings()
    wanted = []
    for group in range(4):
        mine = [one for one in groups if groups[one] == group]
        centre = [math.fsum(values) / len(mine) for values in zip(*(points[one] for one in mine), strict=True)]
        wanted += sorted(mine, key=lambda one: math.dist(points[one], centre))[:3]
    assert pre_experience_sample(frame, options(pick="nearest"))["sample_id"].to_list() == sorted(wanted)


def test_fewer_samples_than_clusters_are_an_error() -> None:
    assert PreExperienceOptions().clusters == 100 and PreExperienceOptions().per_cluster == 10
    with refused("selection.clusters", "32.*100"):
        pre_experience_sample(embeddings()[0], PreExperienceOptions())


def test_the_table_makes_the_models_rows() -> None:
    table = instruction_embedding_table("long")
    assert (table.asset, table.model) == ("instruction_embedding/long", "long")
    rows = list(table.score(loaded_model("llama"), samples(), running()))
    assert not any(isinstance(row, Reject) for row in rows)
    made = pl.DataFrame(rows, schema=schema(INSTRUCTION_EMBEDDING))
    assert made["embedding"].list.len().to_list() == [64] * len(samples())
    assert pre_experience_sample(made, options(clusters=2, per_cluster=9)).height == len(samples())
