"""Contextual awareness measurement of the paper's section 2.2: a sample's row from what the passes gave (Eqs. 3-5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.contextual_awareness import contextual_awareness_score
from gateau_dagster.scoring.forward import Float64
from gateau_dagster.scoring.perplexity import mean_nll_and_perplexity
from gateau_dagster.scoring.segments import segment_means


@dataclass(frozen=True, kw_only=True)
class CamRow:
    """A row of `cam` (tables.CAM)."""

    sample_id: str
    digest: str
    segments: int
    segment_perplexity: list[float]
    segment_attention: list[float]
    cas: float | None


def cam_row(
    sample: Sample, segment_nll: Sequence[Float64], attention: Float64 | None, *, segment_length: int
) -> CamRow:
    """The sample's row, from the response's NLL given each segment alone [N of |y|] and a_t [C]; None: no context.

    Raises UnscorableSampleError when a figure is not finite.
    """
    perplexities = [_segment_perplexity(number, nll) for number, nll in enumerate(segment_nll, start=1)]
    means = [] if attention is None else segment_means(attention, segment_length)
    if not np.isfinite(means).all():
        raise UnscorableSampleError("attention to the context is not finite: try dtype bfloat16 or float32")
    return CamRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        segments=len(perplexities),
        segment_perplexity=perplexities,
        segment_attention=means,
        cas=contextual_awareness_score(perplexities, means),
    )


def _segment_perplexity(number: int, nll: Float64) -> float:
    """PPL_B(y | s_i, x)."""
    try:
        return mean_nll_and_perplexity(nll)[1]
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"given segment {number} alone: {error}") from error
