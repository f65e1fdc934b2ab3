"""Segments s_i of the context: their place, the prompt with each alone (Eq. 3), the attention to each (Eq. 4)."""

import numpy as np

from gateau_dagster.scoring.forward import Float64
from gateau_dagster.scoring.prompt import Prompt


def cut_segments(tokens: int, segment_length: int) -> list[tuple[int, int]]:
    """First and one-past-last context token of each segment s_i: all `segment_length` long, the last one shorter."""
    return [(begin, min(begin + segment_length, tokens)) for begin in range(0, tokens, segment_length)]


def segment_prompts(prompt: Prompt, segment_length: int) -> list[Prompt]:
    """The prompt with each segment alone as its context: the truncated context's own tokens, never tokenised again."""
    return [prompt.with_context(prompt.context[a:b]) for a, b in cut_segments(len(prompt.context), segment_length)]


def segment_means(attention: Float64, segment_length: int) -> list[float]:
    """The raw values of Eq. 4: mean of a_t over each segment's own tokens, from a_t [C]."""
    return [float(np.mean(attention[a:b])) for a, b in cut_segments(len(attention), segment_length)]
