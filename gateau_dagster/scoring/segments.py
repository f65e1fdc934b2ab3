"""The segments of a prompt's context: each alone as a prompt, and which of them are near."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateau_dagster.models.forward import Float64
from gateau_dagster.models.prompt import Prompt


def cut_segments(tokens: int, segment_length: int) -> list[tuple[int, int]]:
    """First and one-past-last context token of each segment s_i: all `segment_length` long, the last one shorter."""
    return [(begin, min(begin + segment_length, tokens)) for begin in range(0, tokens, segment_length)]


def segment_prompts(prompt: Prompt, segment_length: int) -> list[Prompt]:
    """The prompt with each segment alone as its context: the truncated context's own tokens, never tokenised again."""
    return [prompt.with_context(prompt.context[a:b]) for a, b in cut_segments(len(prompt.context), segment_length)]


def segment_means(attention: Float64, segment_length: int) -> list[float]:
    """The raw values of Eq. 4: mean of a_t over each segment's own tokens, from a_t [C]."""
    return [float(np.mean(attention[a:b])) for a, b in cut_segments(len(attention), segment_length)]


Float32 = npt.NDArray[np.float32]


def near_segments(prompt: Prompt, *, segment_length: int, sight: int | None) -> int:
    """How many segments at the end of the prompt's context are near.

    Args:
        prompt: theta_B's.
        segment_length: L, in tokens.
        sight: tokens of a prompt's end that theta_A is shown; None: all, and then the last segment alone is near.
    """
    context = len(prompt.context)
    segments = -(-context // segment_length)
    if sight is None:
        return min(segments, 1)
    around = prompt.length - context
    hidden = context - min(max(sight - around, 0), context)
    return 0 if hidden == context else segments - hidden // segment_length


def near_and_far(without_context: Float64, segments: Sequence[Float64], near: int) -> tuple[Float32, Float32]:
    """near_t and the largest far p_t of each response token, float32 [|y|] each, in [0, 1].

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


def probability(nll: Float64) -> Float32:
    """p = exp(-NLL), as tables store it."""
    return np.exp(-nll).astype(np.float32)
