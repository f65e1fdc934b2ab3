"""Find the tokens that a long context makes likely, by LongPPL (Fang et al. 2024, arXiv 2410.23771, Eqs. 3-5)."""

import numpy as np
import numpy.typing as npt

GAIN, LEAST = 2.0, -2.0  # the paper's alpha and beta
Nlls = npt.NDArray[np.float64]


def key_tokens(long: Nlls, short: Nlls, *, gain: float, least: float) -> npt.NDArray[np.bool_]:
    """Return which tokens are key, bool [n], from -log P given the long and the short context, [n] each.

    A token is key if its log-probability is higher by more than `gain` given the long context (LSD), and above `least`
    there (LCL). A token is not key if `short` is NaN.
    """
    return (short - long > gain) & (-long > least)
