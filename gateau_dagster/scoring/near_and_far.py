"""How likely each response token is from near text and from far segments: two columns of `cam` for far gain.

Far is a segment of which theta_A sees no token; all others are near. What theta_A sees is taken from the configuration
and theta_B's prompt, since a row may depend on its sample alone. With `models.short.context: full` its sight marks no
border, and only last segments are near; with `window` the segments within the window are. The tokens around the context
are counted by theta_B's tokenizer: of a homologous pair they are the same.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateau_dagster.scoring.forward import Float64
from gateau_dagster.scoring.prompt import Prompt

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
