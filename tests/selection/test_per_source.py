from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.selection.per_source import largest_remainder, source_counts
from gateau_dagster.selection.rules import chosen_ids
from tests.error_codes import refused
from tests.selection.slow_rules import ranking, slow_largest_remainder, slow_order

SOURCES = ["law"] * 12 + ["web"] * 6 + ["wiki"] * 2


def of_sources(ids: list[str], sources: list[str]) -> Counter[str]:
    return Counter(sources[int(one[1:])] for one in ids)


def test_each_source_gives_its_share_of_the_best() -> None:
    found = chosen_ids(ranking(SOURCES), RuleConfig(rule="per_source", count=10))
    assert found == [f"s{number:02d}" for number in [0, 1, 2, 3, 4, 5, 12, 13, 14, 18]]
    fraction = chosen_ids(ranking(SOURCES), RuleConfig(rule="per_source", fraction=0.5))
    assert fraction == found


def test_shares_of_the_configuration_replace_those_of_the_data() -> None:
    rule = RuleConfig(rule="per_source", count=5, shares={"web": 0.5, "wiki": 0.5})
    assert of_sources(chosen_ids(ranking(SOURCES), rule), SOURCES) == {"web": 3, "wiki": 2}


@pytest.mark.parametrize("seed", range(5))
def test_largest_remainder_against_whole_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = {f"source {number}": int(rng.integers(1, 40)) for number in range(7)}
    for count in [0, 1, 5, 6, 7, 50, 333]:
        found = largest_remainder({name: Fraction(weight) for name, weight in weights.items()}, count)
        assert found == slow_largest_remainder(weights, count)
        assert sum(found.values()) == count


def test_equal_remainders_go_by_name() -> None:
    assert largest_remainder({"b": Fraction(1), "a": Fraction(1), "c": Fraction(1)}, 1) == {"a": 1, "b": 0, "c": 0}


def test_a_source_with_too_few_scored_samples_is_named_with_the_cure() -> None:
    samples = ranking(SOURCES, unscored=set(range(13, 18)))
    with refused("selection.too_few", "'web'.*1.*6.*10.*3.*short_source"):
        chosen_ids(samples, RuleConfig(rule="per_source", count=10))


def test_what_a_short_source_lacks_goes_to_the_others_in_proportion() -> None:
    samples = ranking(SOURCES, unscored=set(range(13, 18)))
    found = chosen_ids(samples, RuleConfig(rule="per_source", count=10, short_source="share"))
    assert of_sources(found, SOURCES) == {"law": 8, "web": 1, "wiki": 1}
    everything = chosen_ids(samples, RuleConfig(rule="per_source", count=15, short_source="share"))
    assert everything == [row["sample_id"] for row in slow_order(samples)]


def test_sharing_goes_on_while_it_makes_further_sources_short() -> None:
    rule = RuleConfig(rule="per_source", count=30, short_source="share")
    counts = {"a": 100, "b": 100, "c": 100}
    found = source_counts(counts, {"a": 2, "b": 12, "c": 90}, rule, count=30)
    assert found == {"a": 2, "b": 12, "c": 16}
    assert source_counts(counts, {"a": 2, "b": 3, "c": 4}, rule, count=30) == {"a": 2, "b": 3, "c": 4}
