"""Small tables with the promised columns, for the tests of this folder."""

import math
from collections.abc import Sequence

import polars as pl

from gateau_dagster import tables


def perplexity_table(
    perplexity: Sequence[float], *, context_tokens: Sequence[int] | int = 8, ids: Sequence[str] | None = None
) -> pl.DataFrame:
    """A perplexity table of samples s0, s1, ..., whose tokens all have the same probability."""
    count = len(perplexity)
    contexts = [context_tokens] * count if isinstance(context_tokens, int) else list(context_tokens)
    names = list(ids) if ids is not None else [f"s{index}" for index in range(count)]
    return pl.DataFrame(
        {
            "sample_id": names,
            "digest": [f"digest of {name}" for name in names],
            "perplexity": [float(value) for value in perplexity],
            "mean_nll": [math.log(value) for value in perplexity],
            "context_tokens": contexts,
            "response_tokens": [3] * count,
            "truncated_tokens": [0] * count,
            "token_probability": [[1 / value] * 3 for value in perplexity],
            "mean_probability": [1 / value for value in perplexity],
        },
        schema=tables.schema(tables.PERPLEXITY),
    )


def cam_table(
    segment_perplexity: Sequence[Sequence[float]],
    cas: Sequence[float | None],
    ids: Sequence[str] | None = None,
    far_gain: Sequence[float | None] | None = None,
) -> pl.DataFrame:
    """A cam table of samples s0, s1, ...; `far_gain` is a quarter of CAS unless it is given."""
    names = list(ids) if ids is not None else [f"s{index}" for index in range(len(cas))]
    return pl.DataFrame(
        {
            "sample_id": names,
            "digest": [f"digest of {name}" for name in names],
            "segments": [len(values) for values in segment_perplexity],
            "segment_perplexity": [list(values) for values in segment_perplexity],
            "segment_attention": [[0.1] * len(values) for values in segment_perplexity],
            "cas": list(cas),
            "near_segments": [min(len(values), 1) for values in segment_perplexity],
            "no_context_probability": [[0.2, 0.3, 0.1]] * len(names),
            "near_probability": [[0.2, 0.5, 0.1]] * len(names),
            "far_probability": [[0.1, 0.7, 0.0]] * len(names),
            "far_segment": [[None, 0, None]] * len(names),
            "segment_gain": [[0.2] * len(values) for values in segment_perplexity],
            "far_gain": far_gain or [None if value is None else value / 4 for value in cas],
        },
        schema=tables.schema(tables.CAM),
    )
