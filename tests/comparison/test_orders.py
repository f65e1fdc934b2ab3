"""Places of scores."""

import numpy as np
import polars as pl
import pytest

from gateau_dagster.comparison.orders import read_orders

from .frames import NAMES, frame
from .slow import order, scores_of


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
