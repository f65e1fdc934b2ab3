"""Which questions are left of a benchmark's scores."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.contamination.overlaps import OVERLAPS
from gateau_dagster.evaluation.contamination.touched import touched, without_touched

FOUND = pl.DataFrame(
    [("s1", "q1", 30, 0.4, 0.2), ("s2", "q1", 5, 0.1, 0.6), ("s2", "q3", 1, 0.01, 0.0), ("s9", "q4", 0, 0.0, 0.7)],
    schema=tables.schema(OVERLAPS),
    orient="row",
)
SCORES = pl.DataFrame(
    [(f"q{number}", "a", float(number)) for number in (5, 3, 1, 2, 4)],
    schema=tables.schema(tables.SCORES),
    orient="row",
)


def test_a_question_is_touched_by_its_samples_together() -> None:
    assert touched(FOUND).rows() == [("q1", 2, 0.4, 0.6), ("q3", 1, 0.01, 0.0), ("q4", 1, 0.0, 0.7)]
    assert touched(FOUND.clear()).is_empty()


@pytest.mark.parametrize(("least", "left"), [(0.0, [5, 2]), (0.2, [5, 3, 2]), (0.9, [5, 3, 2])])
def test_scores_without_the_touched_questions(least: float, left: list[int]) -> None:
    found = without_touched(SCORES, FOUND, least=least)
    assert found.schema == SCORES.schema and found["question_id"].to_list() == [f"q{number}" for number in left]


def test_of_the_samples_that_were_trained_on() -> None:
    trained = FOUND.filter(pl.col("sample_id") == "s2")
    assert without_touched(SCORES, trained)["question_id"].to_list() == ["q5", "q2", "q4"]


def test_nothing_touched_leaves_every_score() -> None:
    assert without_touched(SCORES, FOUND.clear()).equals(SCORES)
