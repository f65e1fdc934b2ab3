"""Standard errors of totals: due to the choice of questions, and due to the seed of the training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.evaluation.statistics.total import Matrix, Total, Vector

# Agresti and Coull add two questions of each outcome. This code adds at least two of the other outcome.
_UNSEEN_QUESTIONS = 2


@dataclass(frozen=True, kw_only=True)
class VarianceSource:
    """One source of variation of estimates: variances and degrees of freedom, float64 [rows] each.

    NaN and 0 where they are unknown.
    """

    variance: Vector
    freedom: Vector


def question_spread(values: Matrix, total: Total, *, span: float | None = None) -> VarianceSource:
    """Return the spread of totals of values [rows, Q] over other questions of the same kind.

    span: difference between right and wrong, where an answer can only be one of them. Few questions hardly show a rare
    outcome, so the variance is at least that of two more questions with the other outcome.
    """
    rows = len(values)
    variance, squares, free = np.zeros(rows), np.zeros(rows), 0
    for places in total.strata:
        weights, count = total.weights[places], len(places)
        if count < 2:
            return VarianceSource(variance=np.full(rows, np.nan), freedom=np.zeros(rows))
        mean = (values[:, places] @ weights) / weights.sum()
        part = count / (count - 1) * (((values[:, places] - mean[:, None]) * weights) ** 2).sum(axis=1)
        variance, squares, free = variance + part, squares + part**2 / (count - 1), free + count - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(squares > 0, variance**2 / squares, free)
    if span is not None:
        variance = np.maximum(variance, _UNSEEN_QUESTIONS * span**2 * (total.weights**2).mean())
    return VarianceSource(variance=variance, freedom=freedom)


def seed_spread(trained: Sequence[Matrix], total: Total) -> VarianceSource | None:
    """Return the spread of a total between trainings that differ only in their seed; one row for all models.

    trained: values [seeds, Q] of each model. The models' variances are pooled, because two or three seeds give a poor
    estimate. The part due to chance in single questions is subtracted, because the question spread contains it. None
    where no model was trained with two seeds.
    """
    several = [values for values in trained if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    squares = sum(_beyond_questions(values, total) for values in several)
    return VarianceSource(variance=np.array([max(0.0, squares / freedom)]), freedom=np.array([float(freedom)]))


def _beyond_questions(values: Matrix, total: Total) -> float:
    """Return the sum of squares of the seeds' totals, less the part due to chance in single questions."""
    apart = values - values.mean(axis=0)  # [seeds, Q]
    between = float((total.of(apart) ** 2).sum())
    return between - float(question_spread(apart, total).variance.sum())
