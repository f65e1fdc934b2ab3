"""From judgments to the values of questions, and of their turns."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.judged import mean_scores, turn_scores

QUESTIONS = [
    Question(question_id=name, group=group, turns=("one?", "two?"), generation=Generation(max_new_tokens=4))
    for name, group in (("q1", "writing"), ("q2", "math"), ("q3", "math"))
]


def judgments(*rows: tuple[str, int, float | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["question_id", "turn", "score"], orient="row")


GIVEN = judgments(
    ("q1", 0, 8.0), ("q1", 0, 6.0), ("q1", 1, 3.0), ("q1", 1, None), ("q2", 0, 9.0), ("q2", 1, 1.0), ("q3", 1, 5.0),
    ("q3", 0, None),
)  # fmt: skip


def test_a_question_is_worth_the_mean_of_its_turns() -> None:
    found = mean_scores(QUESTIONS, GIVEN, scale=10.0)
    assert found.table.schema == tables.schema(tables.SCORES)
    assert found.table.rows() == [("q1", "writing", 50.0), ("q2", "math", 50.0)]
    assert [(each.sample_id, each.reason) for each in found.rejected] == [
        ("q3", "1 of its 2 turns have no judgment with a score")
    ]


def test_turns_are_worth_the_means_of_their_judgments_and_their_mean_is_the_question_s() -> None:
    whole = mean_scores(QUESTIONS, GIVEN, scale=10.0).table
    found = turn_scores(whole, GIVEN, scale=10.0)
    first, second = found[0], found[1]
    assert first.rows() == [("q1", "writing", 70.0), ("q2", "math", 90.0)]
    assert second.rows() == [("q1", "writing", 30.0), ("q2", "math", 10.0)]
    assert first.schema == second.schema == tables.schema(tables.SCORES)
    assert ((first["value"] + second["value"]) / 2).to_list() == pytest.approx(whole["value"].to_list())


def test_without_a_score_there_is_no_turn() -> None:
    none = judgments(("q1", 0, None)).cast({"score": pl.Float64})
    assert turn_scores(mean_scores(QUESTIONS, none, scale=1.0).table, none, scale=1.0) == {}


def test_a_turn_has_its_number_where_the_one_before_it_cannot_be_read() -> None:
    second = judgments(("q1", 0, None), ("q1", 1, 4.0), ("q2", 1, 6.0))
    whole = mean_scores(QUESTIONS, GIVEN, scale=1.0).table
    (turn, table), *others = turn_scores(whole, second, scale=1.0).items()
    assert turn == 1 and table["value"].to_list() == [4.0, 6.0] and not others
