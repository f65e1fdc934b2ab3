"""Rank spread against plain loops."""

import numpy as np
import pytest

from gateau_dagster.comparison.compare import most_disputed, rank_spread
from gateau_dagster.comparison.orders import orders_of, read_orders

from . import slow
from .frames import NAMES, frame


def test_the_spread_is_that_of_plain_loops() -> None:
    given = frame().sort("sample_id")
    ids = given["sample_id"].to_list()
    scores = [slow.scores_of(given, name) for name in NAMES]
    expected = {key: slow.rank_spread(scores, key) for key in ids}
    orders = read_orders(given, NAMES)
    assert rank_spread(orders) == pytest.approx([expected[key] for key in ids], abs=1e-12)
    found = most_disputed(orders, ids, most=5)
    assert [one.sample_id for one in found] == sorted(ids, key=lambda key: (-round(expected[key], 12), key))[:5]
    for one in found:
        for name, rank in zip(NAMES, one.ranks, strict=True):
            place = slow.order(scores[NAMES.index(name)])
            assert rank == (place.index(one.sample_id) + 1 if one.sample_id in place else None)


def test_agreement_and_single_methods_leave_nothing_disputed() -> None:
    alike = np.array([[3.0, 2.0, 1.0], [30.0, 20.0, 10.0]])
    assert most_disputed(orders_of(("a", "b"), alike), "xyz", most=9) == []
    assert most_disputed(orders_of(("a",), alike[:1]), "xyz", most=9) == []


def test_opposite_orders_dispute_the_ends() -> None:
    found = most_disputed(orders_of(("a", "b"), np.array([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])), "xyz", most=9)
    assert [(one.sample_id, one.ranks) for one in found] == [("x", (1, 3)), ("z", (3, 1))]
    assert found[0].spread == pytest.approx(1 / 3)  # places 1/6 and 5/6
