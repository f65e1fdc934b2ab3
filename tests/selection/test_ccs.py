"""Coverage-centric selection against a plain loop, and what it is made for."""

import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.rules import chosen_ids
from gateau_dagster.selection.statistics import uniform
from tests.kit.error_codes import refused
from tests.selection.builders import Row, ranking, slow_order


def pool(seed: int, size: int = 120) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.gamma(0.7, 1, size))
    samples = ranking(["law"] * size, tokens=rng.integers(1, 30, size).tolist())
    return samples.with_columns(score=pl.Series(scores), rank=pl.Series(range(1, size + 1), dtype=pl.Int32))


def slow_ccs(samples: pl.DataFrame, rule: RuleConfig) -> set[str]:
    rows = slow_order(samples)

    def cost(some: list[Row]) -> int:
        return sum(row["tokens"] for row in some) if rule.budget is not None else len(some)

    left = rule.budget or rule.chosen(len(rows))
    out = (cost(rows) - left) / 3
    while rows and cost(rows[-1:]) <= out:
        out -= cost([rows.pop()])
    low, high = rows[-1]["score"], rows[0]["score"]
    bins: list[list[Row]] = [[] for _ in range(50)]
    for row in rows:
        part = 50 * (row["score"] - low) / (high - low) if high > low else 0
        bins[min(49, math.floor(part))].append(row)
    filled = sorted((part for part in bins if part), key=cost)
    chosen = set()
    while filled:
        part, share = filled[0], left // len(filled)
        for row in sorted(part, key=lambda row: -uniform(row["sample_id"], rule.seed)):
            if cost([row]) > share:
                break
            share -= cost([row])
            left -= cost([row])
            chosen.add(row["sample_id"])
        del filled[0]
    return chosen


@pytest.mark.parametrize(
    "rule",
    [
        RuleConfig(rule="ccs"),
        RuleConfig(rule="ccs", fraction=0.5, seed=3),
        RuleConfig(rule="ccs", fraction=1.0),
        RuleConfig(rule="ccs", count=7),
        RuleConfig(rule="ccs", budget=600),
        RuleConfig(rule="ccs", budget=10_000),
    ],
    ids=str,
)
def test_ccs_is_as_its_plain_loop(rule: RuleConfig) -> None:
    for seed in range(5):
        samples = pool(seed)
        chosen = chosen_ids(samples.sample(fraction=1, shuffle=True, seed=seed), rule)
        assert {*chosen} == slow_ccs(samples, rule)
        if rule.budget is None:
            assert len(chosen) == rule.chosen(samples.height)


def test_equal_scores_are_drawn() -> None:
    samples = ranking(["law"] * 30).with_columns(score=pl.lit(1.0))
    found = chosen_ids(samples, RuleConfig(rule="ccs", count=5, seed=1))
    assert {*found} == {*sorted(samples["sample_id"].head(22), key=lambda one: -uniform(one, 1))[:5]}
    with refused("selection.budget"):
        chosen_ids(samples, RuleConfig(rule="ccs", budget=9))
