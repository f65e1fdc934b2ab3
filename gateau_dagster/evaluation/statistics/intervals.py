"""95 % intervals, with the bootstrap's shape and the standard errors' width."""

from collections.abc import Sequence

import numpy as np

from gateau_dagster.evaluation.statistics.errors import VarianceSource
from gateau_dagster.evaluation.statistics.total import Matrix, Vector

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
    """Return the least p [rows] whose interval around the difference, excluding p / 2 on either side, excludes 0.

    1 where there is no difference or its spread is unknown.
    """
    known = [part for part in parts if (part.variance != 0).any()]
    if len(known) < 2:
        return _one_part(difference, known[0] if known else parts[0])
    low, high = np.full(len(difference), np.log(_LEAST_P)), np.zeros(len(difference))
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
