"""Ratings are read as FastChat and LongAlign read them, but none that is not on the scale."""

import pytest

from gateau_dagster.evaluation.judging.rating import first_rating, last_rating


@pytest.mark.parametrize(
    ("reply", "first", "last"),
    [
        ("Rating: [[5]]", 5, 5),
        ("[[3]] or rather [[7.5]]", 3, 7.5),
        ("Rating: [8]", 8, None),
        ("[[8/10]]", None, 8),
        ("[[rating: 6 points]]", None, 6),
        ("[[5.]]", 5, 5),
        ("[[10]]", 10, 10),
        ("[[11]]", None, None),
        ("[[11 of 10]]", None, None),
        ("11 of 10", None, None),
        ("[[0]]", None, None),
        ("[[rating]]", None, None),
        ("[[]]", None, None),
        ("", None, None),
        ("8", None, None),
    ],
)
def test_the_number_that_counts(reply: str, first: float | None, last: float | None) -> None:
    assert first_rating(reply, low=1, high=10) == first
    assert last_rating(reply, low=1, high=10) == last
