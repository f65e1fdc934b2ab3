"""Which far segment each response token comes from, and what each segment gave: for the evidence map. NumPy only."""

from collections.abc import Sequence

import numpy as np

from gateau_dagster.scoring.response_perplexity import Float32, Float64, probability

# Of the columns that it gives `cam`; raise it when one comes to be another.
CODE_VERSION = "1"
NOTED = 1e-3  # of a smaller gain no segment is on record: which one was best would be a matter of rounding
_EQUAL = 1e-5  # segments whose p_t differ by less are equally good, and the first of them counts


def best_far_segment(near: Float32, segments: Sequence[Float64], near_count: int) -> list[int | None]:
    """The far segment, from 0, that makes each response token likeliest, [|y|]; None where that gains nothing.

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
    """What each segment gave, summed over the response tokens, float64 [N].

    A far one: Σ_t max(0, p(y_t|s_i,x) - near_t), what no near text gives. A near one is not held against itself:
    Σ_t max(0, p(y_t|s_i,x) - p(y_t|x)), what it gives beyond no context. Arguments as above, and -log p(y_t|x) [|y|].
    """
    border = len(segments) - near_count
    nothing = probability(without_context)
    found: list[float] = []
    for place, nll in enumerate(segments):
        gains = probability(nll).astype(np.float64) - (near if place < border else nothing)
        found.append(float(np.maximum(gains, 0.0).sum()))
    return found
