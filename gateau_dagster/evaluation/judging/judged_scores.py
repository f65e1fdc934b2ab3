"""From the judgments of a model's answers to a value for each question, and what of them could not be used."""

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
"""The share of judgments without a score above which their mean is not to be trusted."""


def grade_by_rating(
    questions: Sequence[Question],
    answers: pl.DataFrame,
    judgments: pl.DataFrame | None,
    options: Any,
    *,
    scale: float = 1.0,
) -> Measured:
    """Return `mean_scores` as Scored.grade wants them; a partial of it has another `scale`."""
    del answers, options
    assert judgments is not None, "the benchmark is judged"
    return mean_scores(questions, judgments, scale=scale)


def mean_scores(questions: Sequence[Question], judgments: pl.DataFrame, *, scale: float) -> Measured:
    """Return `scale` times the mean over a question's turns of the mean over the judgments of each.

    A question of which a turn has no score is rejected: the mean of the others would be of an easier question.
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
    """Return tables.SCORES of each turn alone, of the questions in `scores` that have it; see `mean_scores`."""
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
    """Counts judgments without a score: the reply holds none, or there was no reply to any of the question's."""

    judgments: int
    without_score: int
    unanswered: int

    @property
    def share(self) -> float:
        """Of all that were wanted; 0 where none were."""
        total = self.judgments + self.unanswered
        return (self.without_score + self.unanswered) / total if total else 0.0

    @property
    def notable(self) -> bool:
        """Whether it is more than what an undecided judge now and then does."""
        return self.share > NOTABLE_UNREADABLE


def unreadable(judgments: pl.DataFrame, rejected: pl.DataFrame) -> Unreadable:
    """Return what of tables.JUDGMENTS has no score. `rejected`: its rejected questions, tables.REJECTED."""
    return Unreadable(
        judgments=judgments.height,
        without_score=judgments["score"].null_count(),
        unanswered=rejected.height,
    )
