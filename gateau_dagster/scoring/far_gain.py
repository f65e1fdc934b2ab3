"""FG: how much likelier a far segment alone makes the best tokens of a response than near text does. NumPy only.

Of each response token, near_t and the largest far p_t (scoring.near_and_far):

    f_t = max(0, far p_t - near_t),  FG = mean of the k largest f_t,  k = max(2, ceil(top·|y|))

A few tokens of a response may hold all that it takes from far away: a mean over all would lose them among the others.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

TOP = 0.1  # share of the response tokens whose gain counts
_FEWEST = 2  # tokens that the mean of the largest gains takes
_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001 as floats, and its ceiling 8

_Probabilities = Sequence[float] | npt.NDArray[np.floating[Any]]


def counted_tokens(tokens: npt.ArrayLike, *, top: float) -> npt.NDArray[np.int64]:
    """k of responses of so many tokens, int64 of their shape."""
    share = np.ceil(top * np.asarray(tokens, dtype=np.float64) - _ROUNDING)
    return np.maximum(_FEWEST, share.astype(np.int64))


def far_gain(near: _Probabilities, far: _Probabilities, *, segments: int, top: float = TOP) -> float | None:
    """FG of one sample, in [0, 1], from near_t and far p_t [|y|] each; a response shorter than k counts as a whole.

    None with fewer than two segments, where nothing can be far and near (as CAS of Eq. 5). methods.far_gain computes
    the same of whole tables.
    """
    if segments < 2:
        return None
    gains = np.asarray(far, dtype=np.float64) - np.asarray(near, dtype=np.float64)
    largest = np.sort(gains)[::-1][: int(counted_tokens(gains.size, top=top))]
    return float(np.maximum(largest, 0.0).mean())
