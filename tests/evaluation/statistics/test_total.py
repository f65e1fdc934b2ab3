"""The weights of a benchmark's total, and the strata that its questions are drawn in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.evaluation.statistics.compare import total_of
from tests.evaluation.statistics.slow import slow_total

questions = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-10, 10)), min_size=1, max_size=12)


@given(questions, st.booleans())
def test_a_total_is_the_mean_of_the_groups_means_or_of_all(found: list[tuple[str, float]], by_group: bool) -> None:
    groups, values = zip(*found, strict=True)
    total = total_of(groups, by_group=by_group)
    assert total.of(np.array([values])) == pytest.approx(slow_total(values, groups, by_group), abs=1e-9)
    assert total.weights.sum() == pytest.approx(1)
    assert sorted(np.concatenate(total.strata).tolist()) == list(range(len(values)))
    assert len(values) == 1 or min(map(len, total.strata)) > 1


def _strata(groups: str) -> set[str]:
    return {"".join(groups[place] for place in places) for places in total_of(list(groups), by_group=True).strata}


def test_groups_of_one_question_are_drawn_together() -> None:
    assert _strata("aabbb") == {"aa", "bbb"}
    assert _strata("aabcdee") == {"aa", "bcd", "ee"}
    assert _strata("abc") == {"abc"}


def test_one_left_over_joins_the_smallest_group() -> None:
    assert _strata("aaabbc") == {"aaa", "bbc"}
    assert _strata("ab") == {"ab"}
    assert _strata("a") == {"a"}
