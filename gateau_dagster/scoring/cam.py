"""Contextual awareness measurement: a sample's row from what the passes gave (the paper's Eqs. 3-5, and far gain's)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.contextual_awareness import contextual_awareness_score
from gateau_dagster.scoring.far_gain import far_gain
from gateau_dagster.scoring.forward import Float64
from gateau_dagster.scoring.near_and_far import near_and_far
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
    near_probability: list[float]
    far_probability: list[float]
    far_gain: float | None


@dataclass(frozen=True, kw_only=True)
class CamFigures:
    """What the passes gave of a sample.

    without_context: NLL of each response token given the instruction alone [|y|]. segments: given each segment, too
    [N of |y|]. attention: a_t [C]; None without context, or where it is not wanted. near: how many of the last
    segments are near.
    """

    without_context: Float64
    segments: Sequence[Float64]
    attention: Float64 | None
    near: int


def cam_row(sample: Sample, figures: CamFigures, *, segment_length: int) -> CamRow:
    """The sample's row; without attention it has no CAS. Raises UnscorableSampleError when a figure is not finite."""
    attention = figures.attention
    perplexities = [
        _perplexity(f"given segment {number} alone", nll) for number, nll in enumerate(figures.segments, start=1)
    ]
    _perplexity("without context", figures.without_context)
    means = [] if attention is None else segment_means(attention, segment_length)
    if not np.isfinite(means).all():
        raise UnscorableSampleError("attention to the context is not finite: try dtype bfloat16 or float32")
    near, far = near_and_far(figures.without_context, figures.segments, figures.near)
    return CamRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        segments=len(perplexities),
        segment_perplexity=perplexities,
        segment_attention=means,
        cas=None if attention is None else contextual_awareness_score(perplexities, means),
        near_probability=near.tolist(),
        far_probability=far.tolist(),
        far_gain=far_gain(near, far, segments=len(perplexities)),
    )


def _perplexity(given: str, nll: Float64) -> float:
    """PPL_B(y | s_i, x), or PPL_B(y | x)."""
    try:
        return mean_nll_and_perplexity(nll)[1]
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{given}: {error}") from error
