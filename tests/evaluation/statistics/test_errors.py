"""Standard errors against sums over groups, questions and seeds."""

import numpy as np
import pytest

from gateau_dagster.evaluation.statistics.compare import question_spread, seed_spread, total_of
from tests.evaluation.statistics.slow import slow_seed_variance, slow_variance

RNG = np.random.default_rng(5)
GROUPS = list("aaabbbbbcc")


@pytest.mark.parametrize("by_group", [True, False])
def test_the_variance_of_a_total(by_group: bool) -> None:
    values = RNG.normal(size=(3, len(GROUPS)))
    found = question_spread(values, total_of(GROUPS, by_group=by_group))
    assert found.variance == pytest.approx([slow_variance(row, GROUPS, by_group) for row in values.tolist()])


def test_degrees_of_freedom_lie_between_those_of_the_smallest_group_and_all() -> None:
    values = RNG.normal(size=(1, len(GROUPS)))
    assert question_spread(values, total_of(GROUPS, by_group=False)).freedom == pytest.approx([9])
    assert 1 < question_spread(values, total_of(GROUPS, by_group=True)).freedom[0] < 7
    wild = np.array([[0, 0, 0, 0, 0, 0, 0, 0, 5, -5.0]])  # all of it in the group of two
    assert question_spread(wild, total_of(GROUPS, by_group=True)).freedom == pytest.approx([1])


def test_one_question_says_nothing_of_chance() -> None:
    found = question_spread(np.array([[1.0]]), total_of(["a"], by_group=True))
    assert np.isnan(found.variance[0]) and found.freedom[0] == 0


def test_answers_that_are_all_right_vary_as_if_two_more_were_wrong() -> None:
    values, total = np.ones((1, 50)), total_of(["a"] * 50, by_group=False)
    assert question_spread(values, total).variance == pytest.approx([0])
    assert question_spread(values, total, span=1.0).variance == pytest.approx([2 / 50**2])
    half = np.array([[0.0, 1.0] * 25])
    assert question_spread(half, total, span=1.0).variance == question_spread(half, total).variance


def test_what_a_seed_adds_is_the_two_way_table_s() -> None:
    total = total_of(["a"] * 6, by_group=False)
    for shift in (0.0, 3.0):
        tables = [RNG.normal(size=(seeds, 6)) + shift * RNG.normal(size=(seeds, 1)) for seeds in (3, 1, 2)]
        found = seed_spread(tables, total)
        assert found is not None
        assert found.variance == pytest.approx([slow_seed_variance([table.tolist() for table in tables])])
        assert found.freedom.tolist() == [3]


def test_one_seed_each_says_nothing_of_seeds() -> None:
    assert seed_spread([RNG.normal(size=(1, 6))], total_of(["a"] * 6, by_group=False)) is None
