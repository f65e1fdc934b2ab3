"""Choose the segments that theta_B reads alone where `scoring.segments` is `screened`.

The far-segment gain takes, for each response token, only the best near and the best far segment. Three orders of the
segments say which may be those: by the response's attention to them in the pass over the whole prompt, by BM25 for the
tokens of instruction and response, and by BM25 for those of the response. Reciprocal rank fusion makes one order
of the three (Cormack, Clarke and Büttcher 2009), and its first segments are read, as many as one more pass over the
prompt would pay for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gateau_dagster.scoring.segments import cut_segments

if TYPE_CHECKING:
    from bm25s import BM25

    from gateau_dagster.models.flops import ModelShape
    from gateau_dagster.models.prompt import Prompt
    from gateau_dagster.scoring.planned_work import Numbers, PromptParts
    from gateau_dagster.scoring.response_perplexity import Float64

CODE_VERSION = "1"  # raise it when other segments are read, as when ModelShape counts other FLOPs
BUDGET = 1.0  # cost of all that is read besides the whole prompt, in passes over the prompt
LEAST = 4  # segments that are read whatever they cost
_RANK_CONSTANT = 60  # of reciprocal rank fusion, as published


def screened_count(parts: PromptParts, segment_length: int, shape: ModelShape | None) -> Numbers:
    """Return how many segments of each sample are read [samples].

    With the pass without context and the rows of attention they take at most the FLOPs of BUDGET passes over the whole
    prompt, unless LEAST segments take more. Each counts as a whole one. Without a known `shape`, tokens count.
    """
    lengths = parts.prompt, parts.tail, parts.tail + segment_length
    observed = np.zeros_like(parts.prompt)
    if shape is not None:
        head = shape.head_flops(1.0) * parts.response
        lengths = tuple(shape.pass_flops(length, parts.response) + head for length in lengths)
        observed = parts.response * shape.attention_row_flops_each(parts.prompt)
    prompt, alone, segment = lengths
    segments = np.ceil(parts.context / segment_length)
    # A prompt that does not fit has no tokens.
    afforded = np.floor((BUDGET * prompt - alone - observed) / np.maximum(segment, 1.0))
    return np.minimum(np.maximum(afforded, LEAST), segments)


def screened_segments(
    prompt: Prompt, *, count: int, segment_length: int, near: int, attention: Sequence[float] | None
) -> list[int]:
    """Return the segments to read, ascending, from 0: the last one, the best far one, and the first of the order.

    Args:
        prompt: theta_B's.
        count: how many, at least two or all.
        segment_length: L, in tokens.
        near: how many of the last segments are near.
        attention: the mean attention to each (Eq. 4); None: BM25 decides alone.
    """
    segments = [prompt.context[begin:end] for begin, end in cut_segments(len(prompt.context), segment_length)]
    if count >= len(segments):
        return [*range(len(segments))]
    relevance = _bm25(segments, [{*prompt.suffix, *prompt.response}, {*prompt.response}])
    order = fused_order(relevance if attention is None else [attention, *relevance])
    last = len(segments) - 1  # it is nearest to the response
    best_far = [place for place in order if place < len(segments) - near][:1]
    return sorted([*dict.fromkeys([last, *best_far, *order])][:count])


def fused_order(scores: Iterable[Sequence[float] | npt.NDArray[np.floating[Any]]]) -> list[int]:
    """Return the segments by reciprocal rank fusion of these scores [N] each, best first; of equal ones, the nearer."""
    fused: Float64 | float = 0.0
    for each in scores:
        ranks = np.empty(len(each))
        ranks[_descending(each)] = np.arange(1, len(each) + 1)
        fused = fused + 1.0 / (_RANK_CONSTANT + ranks)
    return _descending(np.asarray(fused)).tolist()


def _descending(values: Sequence[float] | npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    return np.lexsort((-np.arange(len(values)), -np.asarray(values)))


def _bm25(segments: Sequence[Sequence[int]], queries: Iterable[Iterable[int]]) -> list[npt.NDArray[np.float32]]:
    """Return the relevance of each segment [N] to each of the sets of tokens."""
    index = _bm25_index()()
    index.index([[str(token) for token in segment] for segment in segments], show_progress=False)
    return [index.get_scores([str(token) for token in sorted(query)]) for query in queries]


@cache
def _bm25_index() -> type[BM25]:
    """Return bm25s' index, imported as if JAX were not installed.

    Where JAX is, importing bm25s starts it, and JAX then takes three quarters of the GPU's memory from torch.
    """
    known = sys.modules.get("jax")
    sys.modules["jax"] = None  # pyright: ignore[reportArgumentType]
    try:
        from bm25s import BM25
    finally:
        if known is None:
            del sys.modules["jax"]
        else:
            sys.modules["jax"] = known
    return BM25
