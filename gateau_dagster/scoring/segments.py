"""Cut a prompt's context into segments: each alone as a prompt, which are near, and what far ones add. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gateau_dagster.scoring.response_perplexity import Float32, Float64, probability

if TYPE_CHECKING:
    from gateau_dagster.models.prompt import Prompt


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


TOP_SHARE = 0.1  # share of the response tokens whose gain counts
_FEWEST = 2  # the least number of tokens in the mean of the largest gains
_ROUNDING = 1e-9  # 0.07·100 is 7.000000000000001 as floats, and its ceiling 8

_Probabilities = Sequence[float] | npt.NDArray[np.floating[Any]]


def cut_segments(tokens: int, segment_length: int) -> list[tuple[int, int]]:
    """Return the first and one-past-last context token of each segment s_i: `segment_length` tokens, the last one
    fewer.
    """
    return [(begin, min(begin + segment_length, tokens)) for begin in range(0, tokens, segment_length)]


def segment_prompts(prompt: Prompt, segment_length: int) -> list[Prompt]:
    """Return the prompt with each segment alone as its context, with the truncated context's own tokens."""
    return [prompt.with_context(prompt.context[a:b]) for a, b in cut_segments(len(prompt.context), segment_length)]


def segment_means(attention: Float64, segment_length: int) -> list[float]:
    """Return the raw values of Eq. 4: the mean of a_t over each segment's own tokens, from a_t [C]."""
    return [float(np.mean(attention[a:b])) for a, b in cut_segments(len(attention), segment_length)]


def near_segments(prompt: Prompt, *, segment_length: int, visible_tokens: int | None) -> int:
    """Return how many segments at the end of the prompt's context are near.

    Args:
        prompt: theta_B's.
        segment_length: L, in tokens.
        visible_tokens: tokens of a prompt's end that theta_A is shown; None: all, and then only the last segment is
            near.
    """
    context = len(prompt.context)
    segments = -(-context // segment_length)
    if visible_tokens is None:
        return min(segments, 1)
    around = prompt.length - context
    hidden = context - min(max(visible_tokens - around, 0), context)
    return 0 if hidden == context else segments - hidden // segment_length


def near_and_far(without_context: Float64, segments: Sequence[Float64], near: int) -> tuple[Float32, Float32]:
    """Return near_t and the largest far p_t of each response token, float32 [|y|] each, in [0, 1].

    near_t = max(p(y_t|x), max over near i of p(y_t|s_i,x)); far: max over far i of p(y_t|s_i,x), 0 without any.

    Args:
        without_context: -log p(y_t|x) [|y|].
        segments: -log p(y_t|s_i,x) [|y|] of each segment, in order.
        near: how many of the last are near.
    """
    border = len(segments) - near
    assert 0 <= border <= len(segments)
    nearest = np.minimum.reduce([without_context, *segments[border:]])
    farthest = np.minimum.reduce(segments[:border]) if border else np.full_like(without_context, np.inf)
    return probability(nearest), probability(farthest)


def counted_tokens(tokens: npt.ArrayLike, *, top: float) -> npt.NDArray[np.int64]:
    """Return k for responses of these numbers of tokens, int64 of their shape."""
    share = np.ceil(top * np.asarray(tokens, dtype=np.float64) - _ROUNDING)
    return np.maximum(_FEWEST, share.astype(np.int64))


def far_gain(near: _Probabilities, far: _Probabilities, *, segments: int, top: float = TOP_SHARE) -> float | None:
    """Return the far-segment gain of one sample: how much more its best response tokens gain from one far segment than
    from near text.

    For each response token, take near_t and the largest far p_t (`near_and_far`), [|y|] each:

        f_t = max(0, far p_t - near_t),  gain = mean of the k largest f_t,  k = max(2, ceil(top·|y|))

    It is in [0, 1]; a response shorter than k counts as a whole. A few tokens of a response may hold all that it takes
    from far away; a mean over all tokens would hide them. Return None with fewer than two segments, because then
    nothing can be both far and near (as for CAS of Eq. 5). methods.far_gain computes the same for whole tables.
    """
    if segments < 2:
        return None
    gains = np.asarray(far, dtype=np.float64) - np.asarray(near, dtype=np.float64)
    largest = np.sort(gains)[::-1][: int(counted_tokens(gains.size, top=top))]
    return float(np.maximum(largest, 0.0).mean())
