"""Rule auto is mix where the forecast is that it pays, and clean elsewhere."""

from typing import Any

import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.forecast import corrected_share, decided, far_use, forecast
from gateau_dagster.selection.rules import chosen_ids, left_out
from tests.kit.error_codes import refused
from tests.selection.builders import ranking

AUTO: dict[str, Any] = {"rule": "auto", "count": 30, "seed": 2, "use": {"far": 0.5}, "per_document": 3}


def pool(far: int, others: int = 380) -> pl.DataFrame:
    kinds = ["one_far"] * far + ["near", "closed_book"] * (others // 2)
    size = len(kinds)
    lengths = [2 + number % 30 for number in range(size)]
    documents = [f"d{number // 2}" for number in range(size)]
    return ranking(["law"] * size, dependency=kinds, response_tokens=lengths, document=documents)


def sums(samples: pl.DataFrame, deficit: float) -> pl.DataFrame:
    """Every far sample has two tokens that depend on far text, and that the whole text predicts worse by this."""
    far = pl.col("dependency") == "one_far"
    return samples.select(
        "sample_id",
        far_tokens=2 * far.cast(pl.UInt32),
        far_sum=2 * deficit * far.cast(pl.Float64),
        near_tokens=2 * (~far).cast(pl.UInt32),
        near_sum=pl.lit(0.0),
    )


@pytest.mark.parametrize(
    ("far", "deficit", "taken"),
    [(20, 0.3, "mix"), (20, 0.0, "clean"), (190, 0.3, "clean"), (2, 0.3, "clean")],
    ids=["it pays", "no deficit", "the pool is like the use", "the pool has too few"],
)
def test_auto_is_mix_where_that_pays_and_clean_elsewhere(far: int, deficit: float, taken: str) -> None:
    samples = pool(far)
    rule, found = decided(samples, RuleConfig.model_validate(AUTO), sums(samples, deficit))
    kept = {name: value for name, value in AUTO.items() if name != "rule"}
    assert rule == RuleConfig.model_validate({"rule": taken, **kept})
    mix = RuleConfig.model_validate({"rule": "mix", **kept})
    assert found == forecast(samples, mix, sums(samples, deficit)) and (found.verdict == "pays") == (taken == "mix")
    shuffled = samples.sample(fraction=1, shuffle=True, seed=3)
    assert chosen_ids(shuffled, decided(shuffled, RuleConfig.model_validate(AUTO), sums(samples, deficit))[0]) == (
        chosen_ids(samples, rule)
    )
    left = left_out(samples, RuleConfig.model_validate(AUTO), chosen_ids(samples, rule))
    assert left.rows.equals(left_out(samples, rule, chosen_ids(samples, rule)).rows)


def test_samples_that_show_the_use_are_no_part_of_the_pool() -> None:
    kinds = ["one_far"] * 4 + ["near"] * 6
    shown = ranking(["mine"] * 10, dependency=kinds, response_tokens=[5] * 10, document=[f"m{n}" for n in range(10)])
    shown = shown.with_columns(
        sample_id="m" + pl.col("sample_id"), digest="m" + pl.col("digest"), rank=pl.col("rank") + 500
    )
    samples = pl.concat([shown, pool(20)])
    rule = RuleConfig.model_validate(AUTO | {"use": ["mine"]})
    assert far_use(samples, rule) == corrected_share(4, 10).value > 0.4
    assert far_use(samples, RuleConfig()) is None and far_use(samples, RuleConfig(use={"far": 0.3})) == 0.3
    taken, found = decided(samples, rule, sums(samples, 0.3))
    assert (taken.rule, found.samples, found.use_given) == ("mix", 400, True)
    with refused("selection.no_use"):
        far_use(samples, RuleConfig(use=["other"]))
