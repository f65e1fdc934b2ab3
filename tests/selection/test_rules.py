"""What all rules have in common, and what is known before any model runs."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.rules import check_data, chosen_ids
from tests.error_codes import refused
from tests.selection.slow_rules import ranking, slow_order

RULES = [
    RuleConfig(fraction=0.3),
    RuleConfig(count=7),
    RuleConfig(rule="token_budget", budget=150),
    RuleConfig(rule="per_source", fraction=0.5, short_source="share"),
    RuleConfig(rule="per_source_tokens", budget=200, short_source="share"),
    RuleConfig(rule="diverse", count=4, encoder="mini", clusters=3),
]


def many(seed: int = 3, size: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return ranking(
        rng.choice(["law", "web", "wiki"], size, p=[0.6, 0.3, 0.1]).tolist(),
        tokens=rng.integers(1, 30, size).tolist(),
        unscored={2, 17, 30},
        embedding=rng.normal(size=(size, 6)).astype(np.float32).tolist(),
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_the_order_of_the_rows_does_not_matter(rule: RuleConfig) -> None:
    samples = many()
    found = chosen_ids(samples, rule)
    for seed in range(3):
        assert chosen_ids(samples.sample(fraction=1, shuffle=True, seed=seed), rule) == found
    order = [row["sample_id"] for row in slow_order(samples)]
    assert found == [one for one in order if one in set(found)] and 0 < len(found) < len(order)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_equal_ranks_are_in_the_order_of_the_ids(rule: RuleConfig) -> None:
    samples = many().with_columns(rank=pl.when(pl.col("score").is_not_null()).then(pl.lit(1, pl.Int32)))
    found = chosen_ids(samples.sample(fraction=1, shuffle=True, seed=5), rule)
    assert found == sorted(found) == chosen_ids(samples, rule)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [(RuleConfig(fraction=0.3), 3), (RuleConfig(count=2), 2), (RuleConfig(count=50), 10), (RuleConfig(), 1)],
)
def test_top_takes_the_best(rule: RuleConfig, wanted: int) -> None:
    samples = ranking(["law"] * 12, unscored={0, 5})
    assert chosen_ids(samples, rule) == [row["sample_id"] for row in slow_order(samples)][:wanted]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_without_a_score_nothing_can_be_chosen(rule: RuleConfig) -> None:
    with refused("selection.no_scores"):
        chosen_ids(many().with_columns(score=pl.lit(None, pl.Float64)), rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"rule": "diverse", "encoder": "mini", "clusters": 101}, "100 samples cannot form 101 clusters"),
        (
            {"rule": "per_source", "count": 40, "shares": {"law": 1, "books": 1}},
            "the data has no source 'books'; there are law, web",
        ),
        (
            {"rule": "per_source", "count": 40, "shares": {"law": 1, "web": 1}},
            r"source 'web' has 10 samples, but its share of 40 is 20\. Lower selection\.count or fraction, change",
        ),
    ],
)
def test_what_the_data_cannot_give_is_known_before_any_score(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(GateauError, match=message):
        check_data({"law": 90, "web": 10}, RuleConfig.model_validate(rule))


@pytest.mark.parametrize("rule", [*RULES, RuleConfig(rule="per_source", count=500)], ids=lambda rule: rule.rule)
def test_data_that_is_enough_passes(rule: RuleConfig) -> None:
    check_data({"law": 90, "web": 10}, rule)
