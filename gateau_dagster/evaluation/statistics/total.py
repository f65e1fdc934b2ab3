"""A benchmark's total as a weighted mean over its questions, and the strata from which they are drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    stratum, single = np.arange(len(sizes)), np.flatnonzero(sizes == 1)
    if len(single) == 1 and len(sizes) > 1:
        others = np.where(sizes == 1, sizes.max() + 1, sizes)
        stratum[single] = others.argmin()
    else:
        stratum[single] = len(sizes)
    return stratum
