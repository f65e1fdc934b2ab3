"""Estimate the work of `perplexity/<model>`, `cam` and `cam_at/<length>`, as models.forward charges it."""

from __future__ import annotations

import numpy as np

from gateau_dagster.scoring.planned_work import PlannedPasses, PlannedWork, SampleTokens


def perplexity_effort(tokens: SampleTokens) -> PlannedWork:
    """Return a pass over each whole prompt, with the output layer for its response."""
    parts = tokens.prompts(opening=True)
    count = (parts.prompt > 0).astype(np.float64)
    return PlannedWork(passes=[PlannedPasses(count=count, length=parts.prompt, read=parts.response, head=True)])


def cam_effort(tokens: SampleTokens, *, length: int, attention: bool = True) -> PlannedWork:
    """Return the passes over each segment of `length` tokens alone (Eq. 3), and over no context.

    With `attention`, a pass over the whole prompt is added (Eq. 4), if the model shows its attention. If perplexity
    takes that pass (`tokens.shared`), it is counted only there. Without a context, that pass is also the pass without
    context.
    """
    parts, shared = tokens.prompts(opening=True), np.asarray(tokens.shared)
    has_context = parts.context > 0
    segments = np.ceil(parts.context / length)
    whole, last = np.maximum(segments - 1, 0), np.minimum(segments, 1)
    alone = ((parts.prompt > 0) & (has_context | ~shared)).astype(np.float64)
    lengths = (
        (whole, np.minimum(parts.context, length) + parts.tail),
        (last, last * (parts.context - whole * length + parts.tail)),
        (alone, parts.tail),
    )
    passes = [PlannedPasses(count=count, length=each, read=parts.response, head=True) for count, each in lengths]
    if not (attention and tokens.shows_attention):
        return PlannedWork(passes=passes)
    own = PlannedPasses(count=(has_context & ~shared).astype(np.float64), length=parts.prompt, read=parts.response)
    observed = parts.response * has_context
    return PlannedWork(
        passes=[own, *passes], rows=lambda shape: observed * shape.attention_row_flops_each(parts.prompt)
    )
