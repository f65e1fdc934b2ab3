"""Find the far segment that each response token comes from, and each segment's gain, for the evidence map. NumPy
only."""

from collections.abc import Sequence

import numpy as np

from gateau_dagster.scoring.response_perplexity import Float32, Float64, probability

# The version of the columns of `cam` that this module computes; raise it when one changes.
CODE_VERSION = "1"
NOTED = 1e-3  # for a smaller gain no segment is recorded: rounding would decide which one is best
_EQUAL = 1e-5  # segments whose p_t differ by less are equally good, and the first of them counts


def best_far_segment(near: Float32, segments: Sequence[Float64], near_count: int) -> list[int | None]:
    """Return the far segment, from 0, that makes each response token likeliest, [|y|]; None if it gains nothing.

    Args:
        near: near_t [|y|], see segments.near_and_far.
        segments: -log p(y_t|s_i,x) [|y|] of each segment, in order.
        near_count: how many of the last are near.
    """
    border = len(segments) - near_count
    if border == 0:
        return [None] * len(near)
    far = probability(np.stack(segments[:border]))
    largest = far.max(axis=0)
    first = np.argmax(far >= largest - _EQUAL, axis=0)
    gains = largest.astype(np.float64) - near
    return [int(place) if gain >= NOTED else None for place, gain in zip(first, gains, strict=True)]


def segment_gains(without_context: Float64, near: Float32, segments: Sequence[Float64], near_count: int) -> list[float]:
    """Return the gain of each segment, summed over the response tokens, float64 [N].

    For a far segment it is Σ_t max(0, p(y_t|s_i,x) - near_t), beyond what near text gives. For a near one it is Σ_t
    max(0, p(y_t|s_i,x) - p(y_t|x)), beyond no context: it is not compared with itself. Arguments are as above, and -log
    p(y_t|x) [|y|].
    """
    border = len(segments) - near_count
    nothing = probability(without_context)
    found: list[float] = []
    for place, nll in enumerate(segments):
        gains = probability(nll).astype(np.float64) - (near if place < border else nothing)
        found.append(float(np.maximum(gains, 0.0).sum()))
    return found
