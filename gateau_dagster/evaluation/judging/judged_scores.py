"""Compute a value for each question from the judgments of a model's answers, and count unusable judgments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.judging.rating import quoted
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Measured

NOTABLE_UNREADABLE = 0.05
"""Largest share of judgments without a score at which their mean can be trusted."""


def grade_by_rating(
    questions: Sequence[Question],
    answers: pl.DataFrame,
    judgments: pl.DataFrame | None,
    options: Any,
    *,
    scale: float = 1.0,
) -> Measured:
    """Return `mean_scores` with the signature of Scored.grade; use `partial` for another `scale`."""
    del answers, options
    assert judgments is not None, "the benchmark is judged"
    return mean_scores(questions, judgments, scale=scale)


def mean_scores(questions: Sequence[Question], judgments: pl.DataFrame, *, scale: float) -> Measured:
    """Return `scale` times the mean over a question's turns of the mean over the judgments of each.

    A question with a turn without a score is rejected, because the mean of the other turns is not comparable.
    """
    found = {
        name: (count, mean)
        for name, count, mean in _turn_means(judgments)
        .group_by("question_id")
        .agg(count=pl.len(), mean=pl.col("score").mean())
        .iter_rows()
    }
    columns = ["question_id", "reply"]  # a frame of scores alone has no replies to quote
    unscored = judgments.filter(pl.col("score").is_null())
    unread = dict(unscored.select(columns).iter_rows()) if {*columns} <= {*judgments.columns} else {}
    rows, rejected = [], []
    for question in questions:
        count, mean = found.get(question.question_id, (0, 0.0))
        if count == len(question.turns):
            rows.append((question.question_id, question.group, scale * mean))
        else:
            reason = f"{len(question.turns) - count} of its {len(question.turns)} turns have no judgment with a score"
            if question.question_id in unread:
                reason += f"; a reply ends with {quoted(unread[question.question_id])}"
            rejected.append(Reject(sample_id=question.question_id, reason=reason))
    return Measured(table=pl.DataFrame(rows, schema=tables.schema(tables.SCORES), orient="row"), rejected=rejected)


def turn_scores(scores: pl.DataFrame, judgments: pl.DataFrame, *, scale: float) -> dict[int, pl.DataFrame]:
    """Return tables.SCORES of each turn alone, for the questions in `scores` that have it, times `scale`."""
    means = _turn_means(judgments).with_columns(value=scale * pl.col("score"))
    return {
        number: scores.drop("value")
        .join(means.filter(turn=number), on="question_id", maintain_order="left")
        .select(scores.columns)
        for number in means["turn"].unique().sort()
    }


def _turn_means(judgments: pl.DataFrame) -> pl.DataFrame:
    """Return `question_id`, `turn` and `score`, the mean over a turn's judgments that have a score."""
    readable = judgments.filter(pl.col("score").is_not_null())
    return readable.group_by("question_id", "turn").agg(score=pl.col("score").mean())


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Number of judgments without a score: unreadable replies, and questions with no reply at all."""

    judgments: int
    without_score: int
    unanswered: int

    @property
    def share(self) -> float:
        """Return the share of all requested judgments; 0 where there are none."""
        total = self.judgments + self.unanswered
        return (self.without_score + self.unanswered) / total if total else 0.0

    @property
    def notable(self) -> bool:
        """Return whether the share exceeds what an undecided judge produces now and then."""
        return self.share > NOTABLE_UNREADABLE


def unreadable(judgments: pl.DataFrame, rejected: pl.DataFrame) -> Unreadable:
    """Count the rows of tables.JUDGMENTS without a score. `rejected`: the rejected questions, tables.REJECTED."""
    return Unreadable(
        judgments=judgments.height,
        without_score=judgments["score"].null_count(),
        unanswered=rejected.height,
    )
