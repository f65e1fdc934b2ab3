"""Compare models on the same questions: their values, their differences to a reference, and which may be the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gateau_dagster.evaluation.statistics.bootstrap import DRAWS, resampled
from gateau_dagster.evaluation.statistics.errors import VarianceSource, question_spread, seed_spread
from gateau_dagster.evaluation.statistics.intervals import holm, interval, p_value
from gateau_dagster.evaluation.statistics.total import Matrix, Total, Vector

TOLD_APART = 0.04
"""Largest corrected p of a significant difference; it is below the promised 5 % to allow for estimated quantities."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row of the comparison: one model, or trainings that differ only in their seed.

    values: float64 [seeds, Q]. trained: whether another seed would have given another model.
    """

    name: str
    values: Matrix
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its 95 % interval; None where there are too few questions to estimate them."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The result of a comparison for one model.

    difference: its value less the reference's; None for the reference itself. best: whether it does not differ
    significantly from the model with the best value.
    """

    name: str
    total: Interval
    difference: Interval | None
    best: bool
    probability_best: float


def compare(
    models: Sequence[Model],
    total: Total,
    *,
    reference: str = "",
    higher: bool = True,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Standing]:
    """Compare the models over the same Q questions; return their standings in order.

    Each pair of models is compared over all questions of both, and the pairs' p-values are corrected together (Holm).
    Truly equal models are therefore separated in at most 5 % of experiments.

    Args:
        reference: name of the model that others are compared with; no differences where no model has it.
        higher: whether more is better.
        bounds: least and greatest value of an answer; no interval extends beyond them.
    """
    found, sign = _Comparison(models, total, bounds=bounds, draws=draws, seed=seed), 1.0 if higher else -1.0
    best, chances, values = found.best(sign), found.probabilities(sign, seed), found.values()
    names = [model.name for model in models]
    against = names.index(reference) if reference in names else None
    differences = [None] * len(models) if against is None else found.differences(against)
    return [
        Standing(
            name=name,
            total=values[row],
            difference=None if row == against else differences[row],
            best=bool(best[row]),
            probability_best=float(chances[row]),
        )
        for row, name in enumerate(names)
    ]


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Shares of the questions that a model answered better than the reference, equally well, and worse."""

    name: str
    better: float
    equal: float
    worse: float


def outcomes(models: Sequence[Model], *, reference: str, higher: bool = True) -> list[Outcomes]:
    """Return the outcomes of each other model, by the mean over its seeds; none where no model is the reference."""
    means = {model.name: model.values.mean(axis=0) for model in models}
    against, sign = means.pop(reference, None), 1 if higher else -1
    if against is None:
        return []
    sides = {name: np.sign(sign * (values - against)) for name, values in means.items()}
    return [
        Outcomes(name=name, better=_share(side, 1), equal=_share(side, 0), worse=_share(side, -1))
        for name, side in sides.items()
    ]


_ROUNDING = 1e-24
"""Variance due to rounding, as a share of the squared values."""
_LAST_DIGITS = 1e-12
"""Difference of totals due to rounding, as a share of them."""
_FEW = 10
"""Degrees of freedom below which equal outcomes of all questions may be due to chance."""


class _Comparison:
    """Computes all models, all differences or all pairs in one pass over arrays."""

    def __init__(
        self, models: Sequence[Model], total: Total, *, bounds: tuple[float, float], draws: int, seed: int
    ) -> None:
        self.total = total
        self.means = np.stack([model.values.mean(axis=0) for model in models])  # [models, Q]
        self.totals = total.of(self.means)
        self.draws = resampled(self.means, total, draws=draws, seed=seed)  # [draws, models]
        levels = np.unique(np.concatenate([model.values.ravel() for model in models]))
        if len(levels) == 1 and levels[0] > 0:  # all right: a wrong answer has the value 0
            levels = np.array([0.0, levels[0]])
        self.levels = levels if len(levels) == 2 else None  # right or wrong
        ends = bounds if self.levels is None else (float(levels[0]), float(levels[1]))
        # Ratings with only two observed values are not right and wrong, so the benchmark's bounds precede them.
        self.least, self.most = (known if np.isfinite(known) else end for known, end in zip(bounds, ends, strict=True))
        self.all_wrong = len(levels) == 1  # and the value of a right answer is unknown
        pooled = seed_spread([model.values for model in models if model.trained], total)
        of_one = VarianceSource(variance=np.zeros(1), freedom=np.zeros(1)) if pooled is None else pooled
        self.seeds = VarianceSource(  # of each model's mean over its seeds
            variance=of_one.variance * np.array([model.trained / len(model.values) for model in models]),
            freedom=of_one.freedom,
        )

    def values(self) -> list[Interval]:
        """Return each model's interval, within the bounds of an answer's value."""
        parts = [self._of_questions(self.means, sure=np.zeros(len(self.means), dtype=np.bool_)), self.seeds]
        low, high = interval(self.totals, self.draws, parts)
        return _intervals(self.totals, np.maximum(low, self.least), np.minimum(high, self.most))

    def differences(self, against: int) -> list[Interval]:
        """Return each model's difference to one of them, at most the span of the bounds."""
        apart = self.totals - self.totals[against]
        apart[np.abs(apart) <= _LAST_DIGITS * np.abs(self.totals)] = 0.0
        draws = self.draws - self.draws[:, [against]]
        low, high = interval(apart, draws, self._parts(np.arange(len(apart)), against))
        span = self.most - self.least
        return _intervals(apart, np.maximum(low, -span), np.minimum(high, span))

    def best(self, sign: float) -> NDArray[np.bool_]:
        """Return whether a model does not differ significantly from the one with the best value, [models]."""
        found = np.ones(len(self.totals), dtype=np.bool_)
        pairs = np.array(list(combinations(range(len(self.totals)), 2)), dtype=np.intp)
        if not len(pairs):
            return found
        one, two = pairs.T
        p = holm(p_value(self.totals[one] - self.totals[two], self._parts(one, two)))
        apart = pairs[p <= TOLD_APART]
        first = int((sign * self.totals).argmax())
        found[np.setdiff1d(apart[(apart == first).any(axis=1)], [first])] = False
        return found

    def probabilities(self, sign: float, seed: int) -> Vector:
        """Return the share of draws in which each model is the best, [models]; they sum to 1, and ties share a draw."""
        drawn, freedom = self.draws, float(self.seeds.freedom[0])
        if freedom:
            chance = np.random.default_rng((seed, 1)).standard_t(freedom, size=drawn.shape)
            drawn = drawn + np.sqrt(self.seeds.variance) * chance
        first = sign * drawn == (sign * drawn).max(axis=1, keepdims=True)
        return (first / first.sum(axis=1, keepdims=True)).mean(axis=0)

    def _parts(self, one: NDArray[np.intp], two: NDArray[np.intp] | int) -> list[VarianceSource]:
        """Return the spreads of differences between models; one estimate of the seeds' variance serves all of them."""
        variance = self.seeds.variance[one] + self.seeds.variance[two]
        apart = self.means[one] - self.means[two]
        return [
            self._of_questions(apart, sure=(apart == 0).all(axis=1)),
            VarianceSource(variance=variance, freedom=self.seeds.freedom),
        ]

    def _of_questions(self, values: Matrix, *, sure: NDArray[np.bool_]) -> VarianceSource:
        """Return the spread over questions, NaN where there are too few to estimate it.

        Few questions with equal outcomes in each group do not show the spread. Rows that are `sure` are exempt: their
        models gave equal answers.
        """
        if self.all_wrong:
            return VarianceSource(variance=np.full(len(values), np.nan), freedom=np.zeros(len(values)))
        span = None if self.levels is None else float(np.ptp(self.levels))
        found = question_spread(values, self.total, span=span)
        alike = found.variance <= _ROUNDING * (values**2).max(axis=1)
        untold = alike & (found.freedom < _FEW) & ~sure
        return VarianceSource(variance=np.where(untold, np.nan, found.variance), freedom=found.freedom)


def _intervals(estimates: Vector, low: Vector, high: Vector) -> list[Interval]:
    columns = (estimates.tolist(), low.tolist(), high.tolist())
    return [
        Interval(value=value, low=None if np.isnan(start) else start, high=None if np.isnan(end) else end)
        for value, start, end in zip(*columns, strict=True)
    ]


def _share(sides: Vector, side: int) -> float:
    return float((sides == side).mean())
