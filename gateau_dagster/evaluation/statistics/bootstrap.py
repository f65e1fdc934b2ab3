"""The paired bootstrap: questions are resampled with replacement, the same ones for every model."""

import numpy as np
from numpy.typing import NDArray

from gateau_dagster.evaluation.statistics.total import Matrix, Total

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
