"""Which questions are left of a benchmark's scores."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.contamination import NEAR, OVERLAPS, touched, without_touched

SCORES = pl.DataFrame(
    [(f"q{number}", "a", float(number)) for number in (5, 3, 1, 2, 4)],
    schema=tables.schema(tables.SCORES),
    orient="row",
)


def pairs(*rows: tuple[str, str, int, float, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=tables.schema(OVERLAPS), orient="row")


FOUND = pairs(
    ("s1", "q1", 30, 0.4, 0.2), ("s2", "q1", 5, 0.1, 0.6), ("s2", "q3", 1, 0.01, 0.0), ("s9", "q4", 0, 0.0, 0.7)
)


def test_a_question_is_touched_by_its_samples_together() -> None:
    assert touched(FOUND).rows() == [("q1", 2, 0.4, 0.6), ("q3", 1, 0.01, 0.0), ("q4", 1, 0.0, 0.7)]
    assert touched(FOUND.clear()).is_empty()


def test_scores_without_the_touched_questions() -> None:
    found = without_touched(SCORES, FOUND)
    assert found.schema == SCORES.schema and found["question_id"].to_list() == ["q5", "q2"]
    assert without_touched(SCORES, FOUND.clear()).equals(SCORES)


def test_of_the_samples_that_were_trained_on() -> None:
    trained = FOUND.filter(pl.col("sample_id") == "s2")
    assert without_touched(SCORES, trained)["question_id"].to_list() == ["q5", "q2", "q4"]


@pytest.mark.parametrize(("samples", "expected"), [(10, {"q1", "q2", "q3"}), (11, {"q2", "q3"})])
def test_what_many_samples_have_a_little_of_is_the_wording_of_many_texts(samples: int, expected: set[str]) -> None:
    wording = [(f"s{number}", question, 40, 0.02, 0.0) for number in range(samples) for question in ("q1", "q2", "q3")]
    found = pairs(*wording, ("t", "q2", 100, 0.05, 0.0), ("t", "q3", 0, 0.0, NEAR))
    assert set(touched(found)["question_id"]) == expected
    counts = dict(touched(found).select("question_id", "samples").iter_rows())
    assert counts["q2"] == counts["q3"] == (samples + 1 if samples <= 10 else 1)
    assert set(touched(found, least=0.02)["question_id"]) == {"q1", "q2", "q3"}
    assert set(touched(found, most_samples=0)["question_id"]) == {"q2", "q3"}
