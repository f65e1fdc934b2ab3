"""Compute the Contextual Awareness Measurement of one sample: importance, attention and their similarity (Eqs. 3-5).

NumPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.response_perplexity import Float64, mean_nll_and_perplexity, probability
from gateau_dagster.scoring.segments import best_far_segment, far_gain, near_and_far, segment_gains, segment_means


def importance_score(segment_perplexity: Sequence[float] | Float64) -> Float64:
    """Return IS(s_i) of Eq. 3: softmax over the segments of PPL(y | s_i, x), float64 [N]. High means unimportant."""
    return _softmax(segment_perplexity)


def segment_attention_score(segment_attention: Sequence[float] | Float64) -> Float64:
    """Return Attn(s_i) of Eq. 4: softmax over the segments of the mean attention to their tokens, float64 [N]."""
    return _softmax(segment_attention)


def contextual_awareness_score(
    segment_perplexity: Sequence[float] | Float64, segment_attention: Sequence[float] | Float64
) -> float | None:
    """Return CAS of Eq. 5: the cosine of the two scores, from the raw values of N segments each; in (0, 1].

    Return None with fewer than two segments: softmax over one value is 1, so a single segment would always score 1.
    Raises ValueError if the lengths differ or a value is not finite.
    """
    if len(segment_perplexity) != len(segment_attention):
        raise ValueError(f"{len(segment_perplexity)} segment perplexities, but {len(segment_attention)} attentions")
    if len(segment_perplexity) < 2:
        return None
    importance, attention = importance_score(segment_perplexity), segment_attention_score(segment_attention)
    # Neither norm is below 1/sqrt(N), since each vector sums to 1. Rounding may exceed 1 by an ulp.
    cosine = importance @ attention / (np.linalg.norm(importance) * np.linalg.norm(attention))
    return min(1.0, float(cosine))


def added_by_segment(
    segment_perplexity: Sequence[float] | Float64, segment_attention: Sequence[float] | Float64
) -> Float64:
    """Return what each segment adds to CAS (Eq. 5), float64 [N], for samples that have one."""
    importance, attention = importance_score(segment_perplexity), segment_attention_score(segment_attention)
    return importance * attention / (np.linalg.norm(importance) * np.linalg.norm(attention))


def _softmax(values: Sequence[float] | Float64) -> Float64:
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise ValueError("softmax of a value that is not finite")
    if not vector.size:
        return vector
    weights = np.exp(vector - vector.max())
    return weights / weights.sum()


@dataclass(frozen=True, kw_only=True)
class CamRow:
    """A row of `cam` (tables.CAM)."""

    sample_id: str
    digest: str
    segments: int
    segment_perplexity: list[float | None]
    segment_attention: list[float]
    cas: float | None
    near_segments: int
    no_context_probability: list[float]
    near_probability: list[float]
    far_probability: list[float]
    far_segment: list[int | None]
    segment_gain: list[float | None]
    far_gain: float | None


@dataclass(frozen=True, kw_only=True)
class CamFigures:
    """The results of the passes over a sample.

    without_context: NLL of each response token given only the instruction [|y|]. segments: the same given each segment,
    too [N of |y|]; None for one that screening leaves out. attention: a_t [C]; None without context, or if it is not
    computed. near: how many of the last segments are near. screened: whether segments may be left out.
    """

    without_context: Float64
    segments: Sequence[Float64 | None]
    attention: Float64 | None
    near: int
    screened: bool = False


def cam_row(sample: Sample, figures: CamFigures, *, segment_length: int) -> CamRow:
    """Return the sample's row; without attention, or if segments are screened, it has no CAS.

    Raise UnscorableSampleError if a value is not finite.
    """
    attention = figures.attention
    perplexities = [
        None if nll is None else _perplexity(f"given segment {number} alone", nll)
        for number, nll in enumerate(figures.segments, start=1)
    ]
    _perplexity("without context", figures.without_context)
    means = [] if attention is None else segment_means(attention, segment_length)
    if not np.isfinite(means).all():
        raise UnscorableSampleError("attention to the context is not finite: try dtype bfloat16 or float32")
    alone, count = figures.without_context, figures.near
    # A segment that is left out has p = 0, so that it is never the best.
    segments = [np.full_like(alone, np.inf) if nll is None else nll for nll in figures.segments]
    near, far = near_and_far(alone, segments, count)
    gains = segment_gains(alone, near, segments, count)
    known = [perplexity for perplexity in perplexities if perplexity is not None]
    return CamRow(
        sample_id=sample.sample_id,
        digest=sample.digest,
        segments=len(perplexities),
        segment_perplexity=perplexities,
        segment_attention=means,
        cas=None if attention is None or figures.screened else contextual_awareness_score(known, means),
        near_segments=count,
        no_context_probability=probability(alone).tolist(),
        near_probability=near.tolist(),
        far_probability=far.tolist(),
        far_segment=best_far_segment(near, segments, count),
        segment_gain=[None if nll is None else gain for nll, gain in zip(figures.segments, gains, strict=True)],
        far_gain=far_gain(near, far, segments=len(perplexities)),
    )


def _perplexity(given: str, nll: Float64) -> float:
    """Return PPL_B(y | s_i, x), or PPL_B(y | x)."""
    try:
        return mean_nll_and_perplexity(nll)[1]
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{given}: {error}") from error
