"""From answers to values, one question at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Measured


def grade_each(
    questions: Sequence[Question], answers: pl.DataFrame, value: Callable[[Question, str], float]
) -> Measured:
    """`value` of each question and its first turn's answer; a question that has none is rejected.

    answers: tables.ANSWERS.
    """
    given = dict(answers.filter(pl.col("turn") == 0).select("question_id", "answer").iter_rows())
    rows = [
        (each.question_id, each.group, value(each, given[each.question_id]))
        for each in questions
        if each.question_id in given
    ]
    missing = (each.question_id for each in questions if each.question_id not in given)
    return measured(rows, [Reject(sample_id=question_id, reason="it was not answered") for question_id in missing])


def measured(rows: Iterable[tuple[str, str, float]], rejected: Sequence[Reject] = ()) -> Measured:
    """rows: question's id, group and value."""
    return Measured(table=pl.DataFrame([*rows], schema=tables.schema(tables.SCORES), orient="row"), rejected=rejected)
