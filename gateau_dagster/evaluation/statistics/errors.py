"""Standard errors of totals: by which questions were asked, and by which seed the model was trained with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.evaluation.statistics.total import Matrix, Total, Vector

# Agresti and Coull count two further questions of each outcome. Two of the other outcome are the least that is added.
_UNSEEN_QUESTIONS = 2


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One reason why estimates vary: variances and degrees of freedom, float64 [rows] each.

    NaN and 0 where nothing tells them.
    """

    variance: Vector
    freedom: Vector


def question_spread(values: Matrix, total: Total, *, span: float | None = None) -> Spread:
    """How far the totals of values [rows, Q] would vary with other questions of the same kind.

    span: how far right and wrong are apart, where an answer can only be one of them. Few questions then hardly show a
    rare outcome, so the variance is at least that of two more questions that came out the other way.
    """
    rows = len(values)
    variance, squares, free = np.zeros(rows), np.zeros(rows), 0
    for places in total.strata:
        weights, count = total.weights[places], len(places)
        if count < 2:
            return Spread(variance=np.full(rows, np.nan), freedom=np.zeros(rows))
        mean = (values[:, places] @ weights) / weights.sum()
        part = count / (count - 1) * (((values[:, places] - mean[:, None]) * weights) ** 2).sum(axis=1)
        variance, squares, free = variance + part, squares + part**2 / (count - 1), free + count - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(squares > 0, variance**2 / squares, free)
    if span is not None:
        variance = np.maximum(variance, _UNSEEN_QUESTIONS * span**2 * (total.weights**2).mean())
    return Spread(variance=variance, freedom=freedom)


def seed_spread(trained: Sequence[Matrix], total: Total) -> Spread | None:
    """The variance of a total between trainings that differ in their seed alone; one row, for all models alike.

    trained: of each model values [seeds, Q]. The models' variances are pooled, since two or three seeds alone say
    little. What of it comes from each question falling out by chance is taken off: the questions' own variance
    holds it. None where no model was trained with two seeds.
    """
    several = [values for values in trained if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    squares = sum(_beyond_questions(values, total) for values in several)
    return Spread(variance=np.array([max(0.0, squares / freedom)]), freedom=np.array([float(freedom)]))


def _beyond_questions(values: Matrix, total: Total) -> float:
    """Sum of squares of the seeds' totals, less what single questions contribute to it by chance."""
    apart = values - values.mean(axis=0)  # [seeds, Q]
    between = float((total.of(apart) ** 2).sum())
    return between - float(question_spread(apart, total).variance.sum())
