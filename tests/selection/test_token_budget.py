import numpy as np
import polars as pl
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.rules import chosen_ids
from tests.error_codes import refused
from tests.selection.slow_rules import ranking, slow_per_source_tokens, slow_token_budget


def by_tokens(budget: int, rule: str = "token_budget", short_source: str = "error") -> RuleConfig:
    fields = {"rule": rule, "budget": budget, "short_source": short_source}
    return RuleConfig.model_validate({key: value for key, value in fields.items() if value != "error"})


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        (30, ["s00", "s01"]),  # exactly met
        (34, ["s00", "s01"]),  # s02 crosses it; s03 with its 4 tokens would still fit and is not taken
        (35, ["s00", "s01", "s02", "s03"][:3]),
        (1000, ["s00", "s01", "s02", "s03"]),
    ],
)
def test_the_sample_that_crosses_the_budget_ends_the_choice(budget: int, wanted: list[str]) -> None:
    samples = ranking(["law"] * 4, tokens=[20, 10, 5, 4])
    assert chosen_ids(samples, by_tokens(budget)) == wanted


@pytest.mark.parametrize("rule", ["token_budget", "per_source_tokens"])
def test_a_budget_below_the_first_sample_is_an_error(rule: str) -> None:
    with refused("selection.budget", r"selection\.budget.*19.*20"):
        chosen_ids(ranking(["law"] * 4, tokens=[20, 10, 5, 4]), by_tokens(19, rule))


def test_many_long_samples_do_not_overflow() -> None:
    samples = ranking(["law"] * 4, tokens=[2**31 - 1] * 4)
    assert len(chosen_ids(samples, by_tokens(3 * 2**31))) == 3


def test_every_source_gives_the_same_percentage() -> None:
    """law has 8 samples, web 4: at 25 % two and one are in, whatever their ranks."""
    samples = ranking(["law"] * 8 + ["web"] * 4)
    assert chosen_ids(samples, by_tokens(30, "per_source_tokens")) == ["s00", "s01", "s08"]
    assert chosen_ids(samples, by_tokens(59, "per_source_tokens")) == ["s00", "s01", "s02", "s03", "s08"]
    assert chosen_ids(samples, by_tokens(60, "per_source_tokens")) == ["s00", "s01", "s02", "s03", "s08", "s09"]


@pytest.mark.parametrize("seed", range(4))
def test_both_rules_are_as_their_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = ranking(
        rng.choice(["law", "web", "wiki"], 60, p=[0.5, 0.3, 0.2]).tolist(),
        tokens=rng.integers(1, 30, 60).tolist(),
        unscored=set(rng.integers(0, 60, 8).tolist()),
    ).with_columns(sample_id=pl.Series([f"s{number:02d}" for number in rng.permutation(60)]))
    for budget in [40, 150, 333, 700, 2000]:
        assert chosen_ids(samples, by_tokens(budget)) == slow_token_budget(samples, budget)
        shared = by_tokens(budget, "per_source_tokens", "share")
        assert chosen_ids(samples, shared) == slow_per_source_tokens(samples, budget)


def test_a_source_that_is_used_up_is_named() -> None:
    samples = ranking(["law"] * 8 + ["web"] * 4, unscored={10, 11})
    assert len(chosen_ids(samples, by_tokens(60, "per_source_tokens"))) == 6, "half of web has a score"
    with refused("selection.too_few", "'web'.*2.*4"):
        chosen_ids(samples, by_tokens(90, "per_source_tokens"))
    shared = chosen_ids(samples, by_tokens(90, "per_source_tokens", "share"))
    assert shared == [f"s{number:02d}" for number in [0, 1, 2, 3, 4, 5, 6, 8, 9]]
    everything = chosen_ids(samples, by_tokens(100, "per_source_tokens"))
    assert everything == samples.filter(pl.col("score").is_not_null())["sample_id"].to_list()


def test_a_sample_whose_tokens_are_not_known_is_passed_over() -> None:
    samples = ranking(["law"] * 4 + ["web"] * 8).with_columns(
        tokens=pl.when(~pl.col("sample_id").is_in(["s00", "s01"])).then("tokens")
    )
    assert chosen_ids(samples, by_tokens(20)) == ["s02", "s03"]
    assert chosen_ids(samples, by_tokens(30, "per_source_tokens")) == ["s02", "s04", "s05"]
    with refused("selection.too_few", "'law'.*2.*4"):
        chosen_ids(samples, by_tokens(90, "per_source_tokens"))
    assert len(chosen_ids(samples, by_tokens(90, "per_source_tokens", "share"))) == 9
    with refused("selection.no_scores"):
        chosen_ids(samples.head(2), by_tokens(20))
