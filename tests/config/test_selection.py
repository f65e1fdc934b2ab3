"""The ranking and the rules: what is chosen, and what does not fit together."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateau_dagster.config import SelectionConfig
from gateau_dagster.config.selection import RuleConfig


def test_parameters_are_what_decides_the_choice() -> None:
    assert RuleConfig().parameters == {"rule": "top", "fraction": 0.1, "duplicates": "one"}
    assert RuleConfig(count=3, duplicates="keep").parameters == {"rule": "top", "count": 3}
    budget = RuleConfig(rule="token_budget", budget=9, duplicates="keep")
    assert budget.parameters == {"rule": "token_budget", "budget": 9}
    assert RuleConfig(rule="diverse", encoder="mini", count=3, duplicates="keep").parameters == {
        "rule": "diverse",
        "count": 3,
        "encoder": "mini",
        "per_cluster": 1,
        "cluster_from": "all",
        "variance": 0.95,
        "seed": 0,
    }


def test_a_limit_by_document_is_of_every_rule_and_kept_with_another_amount() -> None:
    rule = RuleConfig(rule="token_budget", budget=9, per_document=2, duplicates="keep")
    assert rule.parameters == {"rule": "token_budget", "budget": 9, "per_document": 2}
    assert rule.taking(count=3) == RuleConfig(count=3, per_document=2, duplicates="keep")
    assert "per_document" not in RuleConfig().model_dump()


def test_a_configuration_survives_its_own_dump() -> None:
    rule = RuleConfig(rule="per_source", fraction=0.5, shares={"law": 2.0, "web": 1.0})
    assert RuleConfig.model_validate(rule.model_dump()) == rule


@example(fraction=0.145, scored=100)
@example(fraction=0.7, scored=45)
@example(fraction=0.5, scored=5)
@example(fraction=0.5, scored=1)
@example(fraction=0.1, scored=0)
@example(fraction=1e-300, scored=10_000)
@given(fraction=st.floats(0.001, 1) | st.sampled_from([0.1, 0.25, 0.3, 0.5]), scored=st.integers(0, 10_000))
def test_a_fraction_chooses_its_share_and_at_least_one(fraction: float, scored: int) -> None:
    """Half a sample counts as one; the fraction is the decimal number that the file holds."""
    chosen, share = SelectionConfig(fraction=fraction).chosen(scored), Fraction(repr(fraction)) * scored
    if scored and share >= Fraction(1, 2):
        assert -Fraction(1, 2) < chosen - share <= Fraction(1, 2)
    else:
        assert chosen == min(scored, 1)


@given(count=st.integers(1, 500), scored=st.integers(0, 500))
def test_a_count_chooses_that_many_or_all(count: int, scored: int) -> None:
    assert SelectionConfig(count=count).chosen(scored) == min(count, scored)


@given(lengths=st.lists(st.integers(-3, 400), max_size=6))
def test_segment_lengths_are_positive_and_distinct(lengths: list[int]) -> None:
    if min(lengths, default=1) >= 1 and len({*lengths}) == len(lengths):
        assert SelectionConfig(segment_lengths=lengths).segment_lengths == lengths
    else:
        with pytest.raises(ValidationError):
            SelectionConfig(segment_lengths=lengths)
