"""Compare models on the same questions: their values, their differences to a reference, and which may be the best."""

# Why by pairs: all models answer the same questions, so a difference is taken question by question. What makes a
# question hard for every model cancels out. Two separate intervals that overlap would hide many true differences.
#
# Why two spreads: another set of questions and another training run are two sources of chance. There are usually
# hundreds of questions, but only two or three seeds. One common variance would hide how little is known about the
# seeds.
#
# Why bootstrap and t together: the percentiles of few questions are too narrow, while t assumes symmetry. So the draws
# give the shape of an interval, and t its length.
#
# What it costs: 10,000 draws of the questions, as products of matrices, in blocks of two million counts. When another
# way is better: `paired`, if the models were trained with the same seeds, or if questions are about the same page.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Total:
    """The total T(x) = Σ_q weights_q x_q over Q questions.

    weights: float64 [Q]; they sum to 1. strata: indices of the questions in each stratum; each question is in one of
    them. No stratum has a single question where Q is above 1.
    """

    weights: Vector
    strata: tuple[NDArray[np.intp], ...]

    def of(self, values: Matrix) -> Vector:
        """Return T of each row: [..., Q] to [...]."""
        return values @ self.weights


def total_of(groups: Sequence[str], *, by_group: bool) -> Total:
    """Return the mean of the groups' means, with one stratum per group; or the mean of all questions.

    Groups of a single question, such as the cells of a grid, do not show the variance by themselves. Together they are
    one stratum, which makes intervals too wide rather than too narrow.
    """
    names, place, sizes = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True, return_counts=True)
    count = len(place)
    if not by_group:
        return Total(weights=np.full(count, 1 / count), strata=(np.arange(count),))
    stratum = _without_single_ones(sizes)[place]
    strata = tuple(np.flatnonzero(stratum == each) for each in np.unique(stratum))
    return Total(weights=1 / (len(names) * sizes[place]), strata=strata)


def _without_single_ones(sizes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the stratum of each group: its own, or a common one of all groups with one question.

    If there is only one such group, it joins the smallest other one.
    """
    # A stratum of one question has no variance.
    stratum, single = np.arange(len(sizes)), np.flatnonzero(sizes == 1)
    if len(single) == 1 and len(sizes) > 1:
        others = np.where(sizes == 1, sizes.max() + 1, sizes)
        stratum[single] = others.argmin()
    else:
        stratum[single] = len(sizes)
    return stratum


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

    span: difference between right and wrong, if an answer can only be one of them. Few questions hardly show a rare
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
    """Return the spread of a total between training runs that differ only in their seed; one row for all models.

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


TAIL = 0.025
"""Probability beyond either end of an interval."""
_LEAST_P = 1e-12
_HALVINGS = 25  # of the interval of log p, down to about a millionth


def interval(estimate: Vector, draws: Matrix, parts: Sequence[VarianceSource]) -> tuple[Vector, Vector]:
    """Return lower and upper ends [rows]; NaN where the spread is unknown.

    The bootstrap's percentiles, in its own standard deviations, give the reach to either side. The standard errors give
    the length (`half_width`). draws: totals [draws, rows].
    """
    low, high = np.quantile(draws, (TAIL, 1 - TAIL), axis=0) - estimate
    deviation, normal = draws.std(axis=0), _student(np.inf, TAIL)
    flat = deviation <= 1e-12 * np.maximum(1.0, np.abs(estimate))  # every draw is the same
    width = half_width(parts, TAIL) / normal
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = [np.where(flat, sign * normal, side / deviation) for sign, side in ((-1, low), (1, high))]
    return estimate + width * sides[0], estimate + width * sides[1]


def half_width(parts: Sequence[VarianceSource], tail: Vector | float) -> Vector:
    """Return the half-width of intervals that exclude `tail` on either side, for several independent spreads.

    Student's t of each part, by its own degrees of freedom, is added in squares. Where a part comes from only two
    seeds, a common t by Welch and Satterthwaite covers the truth too rarely.
    """
    found = [np.where(part.variance == 0, 0.0, part.variance * _student(part.freedom, tail) ** 2) for part in parts]
    return np.sqrt(sum(found, np.zeros_like(parts[0].variance)))


def p_value(difference: Vector, parts: Sequence[VarianceSource]) -> Vector:
    """Return the smallest p [rows] for which the interval without p / 2 on either side of the difference excludes 0.

    It is 1 if there is no difference or its spread is unknown.
    """
    known = [part for part in parts if (part.variance != 0).any()]
    if len(known) < 2:
        return _one_part(difference, known[0] if known else parts[0])
    low, high = np.full(len(difference), np.log(_LEAST_P)), np.zeros(len(difference))
    # With two spreads of different degrees of freedom, p has no closed form. The interval grows as p falls, so p is
    # found by bisection.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        apart = np.abs(difference) > half_width(known, np.exp(middle) / 2)
        low, high = np.where(apart, low, middle), np.where(apart, middle, high)
    return np.exp(high)


def _one_part(difference: Vector, part: VarianceSource) -> Vector:
    """Compute `p_value` for one spread in closed form."""
    from scipy.special import stdtr  # slow to import

    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, np.abs(difference) / np.sqrt(part.variance))
        p = np.where(np.isinf(t), 0.0, 2 * stdtr(part.freedom, -t))
    return np.where(np.isnan(p), 1.0, p)


def holm(p: Vector) -> Vector:
    """Return the p-values [n] corrected for n comparisons by Holm's step-down procedure."""
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    found = np.empty_like(p, dtype=np.float64)
    found[order] = np.minimum(1.0, stepped)
    return found


def _student(freedom: Vector | float, tail: Vector | float) -> Vector:
    """Return the Student's t that is exceeded with probability `tail`; NaN without a degree of freedom."""
    from scipy.special import stdtrit  # slow to import

    return np.where(np.asarray(freedom) > 0, -stdtrit(np.clip(freedom, 1e-3, 1e9), tail), np.nan)


DRAWS = 10_000
_CELLS = 2_000_000  # most counts that are held at once


def resampled(values: Matrix, total: Total, *, draws: int = DRAWS, seed: int = 0) -> Matrix:
    """Return totals [draws, rows] of values [rows, Q] over questions resampled within each stratum.

    The difference of two rows is that of their columns, because both have the same questions in each draw. The variance
    of a resample of n from n questions is too small by (n - 1) / n. Deviations are therefore multiplied by the root of
    n / (n - 1).
    """
    rng = np.random.default_rng(seed)
    found = np.zeros((draws, len(values)))
    for places in total.strata:
        weights, count = total.weights[places], len(places)
        weighted = (values[:, places] * weights).T  # [n, rows]
        whole, stretch = weighted.sum(axis=0), np.sqrt(count / max(1, count - 1))
        step = max(1, _CELLS // count)
        for start in range(0, draws, step):
            counts = _counts(rng, min(step, draws - start), count)
            mean = weights.sum() * (counts @ weighted) / (counts @ weights)[:, None]
            found[start : start + len(counts)] += whole + stretch * (mean - whole)
    return found


def _counts(rng: np.random.Generator, draws: int, count: int) -> NDArray[np.float64]:
    """Return how often each of `count` questions is drawn, [draws, count]; each row sums to `count`."""
    drawn = rng.integers(count, size=(draws, count)) + count * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float64)


TOLD_APART = 0.04
"""Largest corrected p of a significant difference; it is below the promised 5 % to allow for estimated quantities."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row of the comparison: one model, or training runs that differ only in their seed.

    values: float64 [seeds, Q]. trained: whether another seed would have given another model.
    """

    name: str
    values: Matrix
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and the ends of its 95 % interval; None if there are too few questions to estimate them."""

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
        reference: name of the model that others are compared with; without such a model there are no differences.
        higher: whether a higher value is better.
        bounds: lowest and highest possible value of an answer; no interval extends beyond them.
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
        # All pairs are corrected together, not only those with the first model: which one is first is read from the
        # same values.
        p = holm(p_value(self.totals[one] - self.totals[two], self._parts(one, two)))
        apart = pairs[p <= TOLD_APART]
        first = int((sign * self.totals).argmax())
        found[np.setdiff1d(apart[(apart == first).any(axis=1)], [first])] = False
        return found

    def probabilities(self, sign: float, seed: int) -> Vector:
        """Return the share of draws in which each model is the best, [models]; they sum to 1, and ties share a draw."""
        drawn, freedom = self.draws, float(self.seeds.freedom[0])
        if freedom:
            # Another stream than that of the resamples, so that seeds and questions vary independently.
            chance = np.random.default_rng((seed, 1)).standard_t(freedom, size=drawn.shape)
            drawn = drawn + np.sqrt(self.seeds.variance) * chance
        first = sign * drawn == (sign * drawn).max(axis=1, keepdims=True)
        return (first / first.sum(axis=1, keepdims=True)).mean(axis=0)

    def _parts(self, one: NDArray[np.intp], two: NDArray[np.intp] | int) -> list[VarianceSource]:
        # No covariance: the seeds of two models count as independent here. `paired` is for models that share them.
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


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The difference of two models that were trained with the same seeds.

    p: two-sided, of no difference; see `holm` for several comparisons. seeds, clusters: how many there are of each.
    """

    difference: Interval
    p: float
    seeds: int
    clusters: int


def paired(
    differences: Matrix,
    groups: Sequence[str],
    clusters: Sequence[str],
    *,
    shares: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> PairedDifference:
    """Return the mean of differences that are taken seed by seed and question by question.

    `compare` pools the spread that seeds cause over all models, as if the models' seeds had nothing in common. Models
    of one seed share its initial weights, its order and, with nested selections, many samples, so their difference
    varies less. The price is fewer degrees of freedom: seeds - 1. Decide between the two before the values are known.

    Questions about the same page are not independent. So whole clusters are drawn with replacement, and the variance
    is that of the ratio of sums over clusters, by linearisation (Woodruff 1971).

    Args:
        differences: float64 [seeds, Q], a model's values less those of the reference. Any linear contrast will do, for
            example with a part of what training gains subtracted.
        groups: of the Q questions.
        clusters: of the Q questions, such as the page that a question is about.
        shares: weights of the groups' means in the total; questions of other groups are left out. Default: every
            question weighs the same.
        draws: number of resamples.
        seed: of the resamples.

    Raises:
        ValueError: a group with a share has no question.
    """
    given = {"": 1.0} if shares is None else shares
    columns = [""] * len(groups) if shares is None else groups
    kept = [place for place, group in enumerate(columns) if group in given]
    if lacking := {*given} - {columns[place] for place in kept}:
        raise ValueError(f"no question is of the group {min(lacking)}")
    sums = _ClusterSums.of([columns[place] for place in kept], [clusters[place] for place in kept], given)
    values, count = differences[:, kept], len(differences)
    mean = values.mean(axis=0, keepdims=True)
    estimate, apart = sums.totals(mean), values - mean
    beyond = (sums.totals(apart) ** 2).sum() - sums.spread(apart).variance.sum()  # what chance in questions leaves
    variance = max(0.0, float(beyond)) / (count - 1) / count if count > 1 else np.nan
    parts = [sums.spread(mean), VarianceSource(variance=np.array([variance]), freedom=np.array([count - 1.0]))]
    low, high = interval(estimate, sums.resampled(mean, draws=draws, seed=seed), parts)
    (difference,) = _intervals(estimate, low, high)
    p = float(p_value(estimate, parts)[0])
    return PairedDifference(difference=difference, p=p, seeds=count, clusters=len(sums.sizes))


@dataclass(frozen=True, kw_only=True)
class _ClusterSums:
    """Totals Σ_g share_g (mean of the questions of group g) of questions in clusters.

    cells: the cluster and the group of each question as one index, int [Q]. sizes: questions of each cluster and group,
    float64 [P, G]. shares: float64 [G].
    """

    cells: NDArray[np.intp]
    sizes: Matrix
    shares: Vector

    @classmethod
    def of(cls, groups: Sequence[str], clusters: Sequence[str], shares: Mapping[str, float]) -> "_ClusterSums":
        names, (every, own) = [*shares], np.unique(np.asarray(clusters, dtype=np.str_), return_inverse=True)
        # One index for cluster and group: `bincount` then sums all cells in one pass over the questions.
        cells = own * len(names) + np.array([names.index(group) for group in groups], dtype=np.intp)
        sizes = np.bincount(cells, minlength=len(every) * len(names)).reshape(len(every), len(names))
        return cls(cells=cells, sizes=sizes.astype(np.float64), shares=np.array([*shares.values()]))

    def sums(self, values: Matrix) -> NDArray[np.float64]:
        """Return the sums [rows, P, G] of values [rows, Q]."""
        found = [np.bincount(self.cells, weights=row, minlength=self.sizes.size) for row in values]
        return np.stack(found).reshape(len(values), *self.sizes.shape).astype(np.float64)

    def totals(self, values: Matrix) -> Vector:
        """Return the totals [rows] of values [rows, Q]."""
        return self.sums(values).sum(axis=1) / self.sizes.sum(axis=0) @ self.shares

    def spread(self, values: Matrix) -> VarianceSource:
        """Return the spread of the totals over other clusters; unknown where a group has one cluster."""
        sums, sizes = self.sums(values), self.sizes.sum(axis=0)
        apart = sums - (sums.sum(axis=1) / sizes)[:, None] * self.sizes
        influence = (apart / sizes) @ self.shares  # [rows, P]
        fewest = int((self.sizes > 0).sum(axis=0).min())
        count = len(self.sizes) if fewest > 1 else np.nan
        variance = count / (count - 1) * (influence**2).sum(axis=1)
        return VarianceSource(variance=variance, freedom=np.full(len(values), fewest - 1.0))

    def resampled(self, values: Matrix, *, draws: int, seed: int) -> Matrix:
        """Return totals [draws, rows] over clusters drawn with replacement; a group that is not drawn keeps its mean.

        Deviations are multiplied by the root of P / (P - 1), as in `resampled`.
        """
        rng, count, sums = np.random.default_rng(seed), len(self.sizes), self.sums(values)
        whole, found = self.totals(values), []
        step = max(1, _CELLS // count)
        for start in range(0, draws, step):
            counts = _counts(rng, min(step, draws - start), count)
            sizes = counts @ self.sizes  # [draws, G]
            with np.errstate(invalid="ignore"):
                means = np.einsum("dp,rpg->drg", counts, sums) / sizes[:, None]
            means = np.where(sizes[:, None] > 0, means, sums.sum(axis=1) / self.sizes.sum(axis=0))
            found.append(means @ self.shares)
        return whole + np.sqrt(count / max(1, count - 1)) * (np.concatenate(found) - whole)
