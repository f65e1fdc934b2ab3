"""Places of scores, and how far two orders agree, against plain loops."""

import itertools
import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.comparison import orders as module
from gateau_dagster.comparison.orders import compare_pairs, kendall, levels, read_orders
from tests.comparison import slow
from tests.comparison.frames import NAMES, frame
from tests.comparison.slow import order, scores_of


def test_places_are_those_of_a_plain_sort() -> None:
    given = frame().sort("sample_id")
    orders = read_orders(given, NAMES)
    for row, name in enumerate(NAMES):
        expected = order(scores_of(given, name))
        known = {key: place for key, place in zip(given["sample_id"], orders.places[row], strict=True) if place}
        assert sorted(known, key=known.__getitem__) == expected
        assert sorted(known.values()) == list(range(1, len(expected) + 1))
        assert orders.scored[row] == len(expected)


def test_the_first_of_a_method_are_never_samples_without_a_score() -> None:
    orders = read_orders(frame(nulls=0.9).sort("sample_id"), NAMES)
    row = NAMES.index("c")
    assert 0 < orders.scored[row] < 30
    assert orders.first(row, 30).sum() == orders.scored[row]
    assert not orders.first(row, 30)[np.isnan(orders.scores[row])].any()
    assert not orders.first(NAMES.index("nothing"), 30).any()


def test_some_rows_are_ranked_among_themselves() -> None:
    orders = read_orders(frame().sort("sample_id"), ("flat",))
    rows = np.arange(60) % 2 == 0
    assert orders.of(rows).places.tolist() == [list(range(1, 31))]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="score:x holds a value that is not finite"):
        read_orders(pl.DataFrame({"score:x": [1.0, value]}), ("x",))


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="no column score:x"):
        read_orders(frame(), ("a", "x"))


GIVEN = frame().sort("sample_id")
SCORES = {name: slow.scores_of(GIVEN, name) for name in NAMES}


def test_correlations_are_those_of_plain_loops_over_common_samples() -> None:
    found = compare_pairs(read_orders(GIVEN, NAMES), levels(60))
    assert [(pair.first, pair.second) for pair in found] == list(itertools.combinations(NAMES, 2))
    for pair in found:
        one, two = SCORES[pair.first], SCORES[pair.second]
        assert pair.common == len(set(one) & set(two))
        for got, expected in ((pair.spearman, slow.spearman(one, two)), (pair.kendall, slow.kendall(one, two))):
            if expected is None:
                assert got is None
            else:
                assert got == pytest.approx(expected, abs=1e-12)
    assert sum(pair.spearman is None for pair in found) == 7  # every pair with `nothing` or `flat`


@pytest.mark.parametrize("nulls", [0.2, 0.85])
def test_overlaps_are_those_of_sets(nulls: float) -> None:
    given = frame(nulls=nulls).sort("sample_id")
    for pair in compare_pairs(read_orders(given, NAMES), levels(60, 7)):
        orders = [slow.order(slow.scores_of(given, name)) for name in (pair.first, pair.second)]
        assert [(level.share, level.wanted) for level in pair.overlaps] == [(0.1, 6), (0.3, 18), (0.5, 30), (None, 7)]
        for level in pair.overlaps:
            one, two = (set(order[: level.wanted]) for order in orders)
            assert level.common == len(one & two)
            largest = max(len(one), len(two))
            assert level.overlap == (len(one & two) / largest if one and two else None)


def test_the_expected_overlap_is_the_mean_over_random_orders() -> None:
    given = frame(12, nulls=0.4).sort("sample_id")
    orders = read_orders(given, ("b", "c"))
    found = compare_pairs(orders, levels(12, shares=(0.3,)))[0].overlaps[0]
    sets = [slow.order(slow.scores_of(given, name)) for name in ("b", "c")]
    drawn = [[set(each) for each in itertools.combinations(ids, min(found.wanted, len(ids)))] for ids in sets]
    common = [len(one & two) for one in drawn[0] for two in drawn[1]]
    largest = max(len(drawn[0][0]), len(drawn[1][0]))
    assert found.expected == pytest.approx(math.fsum(common) / len(common) / largest)
    assert found.expected != pytest.approx(0.3)  # what it would be had both scored all


def test_two_orders_by_chance_overlap_as_expected() -> None:
    rng = np.random.default_rng(3)
    orders = module.compare_pairs(
        read_orders(frame(4000).with_columns(**{"score:a": rng.random(4000), "score:c": rng.random(4000)}), ("a", "c")),
        levels(4000),
    )
    for level, share in zip(orders[0].overlaps, (0.1, 0.3, 0.5), strict=True):
        assert level.expected == pytest.approx(share)
        assert level.overlap == pytest.approx(share, abs=0.04)


def test_kendall_of_many_samples_is_taken_over_a_fixed_sample_of_them() -> None:
    rng = np.random.default_rng(1)
    one = rng.normal(size=20_000)
    two = one + rng.normal(size=20_000)
    exact, drawn = kendall(one, two), kendall(one, two, most=5000)
    assert exact is not None and drawn is not None
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=3 / math.sqrt(5000))
    assert drawn == kendall(one, two, most=5000)


def test_one_sample_has_no_order_and_levels_hold_at_least_one() -> None:
    found = compare_pairs(read_orders(frame(1, nulls=0), ("a", "c")), levels(1, 1))[0]
    assert (found.common, found.spearman, found.kendall) == (1, None, None)
    assert [(level.wanted, level.overlap, level.expected) for level in found.overlaps] == [(1, 1.0, 1.0)] * 4
