"""Small tables with the promised columns, for the tests of this folder."""

import math
from collections.abc import Sequence

import polars as pl

from gateau_dagster import tables


def perplexity_table(
    perplexity: Sequence[float], *, context_tokens: Sequence[int] | int = 8, ids: Sequence[str] | None = None
) -> pl.DataFrame:
    """A perplexity table of samples s0, s1, ..."""
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
        },
        schema=tables.schema(tables.PERPLEXITY),
    )


def cam_table(
    segment_perplexity: Sequence[Sequence[float]], cas: Sequence[float | None], ids: Sequence[str] | None = None
) -> pl.DataFrame:
    """A cam table of samples s0, s1, ..."""
    names = list(ids) if ids is not None else [f"s{index}" for index in range(len(cas))]
    return pl.DataFrame(
        {
            "sample_id": names,
            "digest": [f"digest of {name}" for name in names],
            "segments": [len(values) for values in segment_perplexity],
            "segment_perplexity": [list(values) for values in segment_perplexity],
            "segment_attention": [[0.1] * len(values) for values in segment_perplexity],
            "cas": list(cas),
        },
        schema=tables.schema(tables.CAM),
    )
