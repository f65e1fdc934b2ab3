"""A benchmark's total as a weighted mean over its questions, and within what its questions count as drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Total:
    """T(x) = Σ_q weights_q x_q, over Q questions.

    weights: float64 [Q]; they sum to 1. strata: places of the questions that were drawn from the same place, each
    question in one of them; none has a single one where Q is above 1.
    """

    weights: Vector
    strata: tuple[NDArray[np.intp], ...]

    def of(self, values: Matrix) -> Vector:
        """T of each row: [..., Q] to [...]."""
        return values @ self.weights


def total_of(groups: Sequence[str], *, by_group: bool) -> Total:
    """The mean of the groups' means, each group with its own draw of questions; or of all questions alike.

    Groups of a single question, such as the cells of a grid, say nothing of chance by themselves: they are one stratum
    together, which makes intervals rather too wide than too narrow.
    """
    names, place, sizes = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True, return_counts=True)
    count = len(place)
    if not by_group:
        return Total(weights=np.full(count, 1 / count), strata=(np.arange(count),))
    stratum = _without_single_ones(sizes)[place]
    strata = tuple(np.flatnonzero(stratum == each) for each in np.unique(stratum))
    return Total(weights=1 / (len(names) * sizes[place]), strata=strata)


def _without_single_ones(sizes: NDArray[np.intp]) -> NDArray[np.intp]:
    """The stratum of each group: its own, or that of all groups with one question; one left over joins the smallest."""
    stratum, single = np.arange(len(sizes)), np.flatnonzero(sizes == 1)
    if len(single) == 1 and len(sizes) > 1:
        others = np.where(sizes == 1, sizes.max() + 1, sizes)
        stratum[single] = others.argmin()
    else:
        stratum[single] = len(sizes)
    return stratum
