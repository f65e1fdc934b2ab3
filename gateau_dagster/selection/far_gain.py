"""The contextual awareness that the `robust` preset uses: what the far context adds, from the `cam` table's figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateau_dagster.selection.normalise import Vector

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Segmented:
    """Per sample: context tokens that theta_B and theta_A saw, int64 [|D|] each, and PPL_B(y | s_i, x), [N] each.

    `segment_length`: L, tokens of every segment but a shorter last one.
    """

    context_tokens: Int64
    visible_tokens: Int64
    segment_perplexity: Sequence[Vector]
    segment_length: int


def near_segments(segmented: Segmented) -> Int64:
    """How many segments at the end of each context count as near, int64 [|D|].

    Near is what theta_A saw any token of. Where theta_A saw every context in full (`context: full`), its sight
    marks no border, and only the last segment is near.
    """
    counts = np.array([len(values) for values in segmented.segment_perplexity], dtype=np.int64)
    hidden = segmented.context_tokens - segmented.visible_tokens
    if not (hidden > 0).any():
        return np.minimum(counts, 1)
    return counts - np.clip(hidden // segmented.segment_length, 0, counts)


def far_gain(segmented: Segmented) -> Vector:
    """max(0, max over far i of P(y|s_i,x) - max over near i of P(y|s_i,x)), float64 [|D|], in [0, 1].

    P = 1 / PPL_B(y | s_i, x), the geometric mean probability of a response token, so that no unit or scale is left.
    0 where every segment is near. NaN below two segments, where there is nothing to compare (as in Eq. 5).
    """
    gains = np.full(len(segmented.segment_perplexity), np.nan)
    for index, near in enumerate(near_segments(segmented)):
        probability = 1.0 / np.asarray(segmented.segment_perplexity[index], dtype=np.float64)
        if probability.size < 2:
            continue
        far = probability.size - near
        gains[index] = max(0.0, probability[:far].max() - probability[far:].max(initial=0.0)) if far else 0.0
    return gains
