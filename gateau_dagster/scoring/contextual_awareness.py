"""Eqs. 3-5 on the raw per-segment figures: importance score, attention score and their agreement. NumPy only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Vector = npt.NDArray[np.float64]


def importance_score(segment_perplexity: Sequence[float] | _Vector) -> _Vector:
    """IS(s_i) of Eq. 3: softmax over the segments of PPL(y | s_i, x), float64 [N]. High means unimportant."""
    return _softmax(segment_perplexity)


def segment_attention_score(segment_attention: Sequence[float] | _Vector) -> _Vector:
    """Attn(s_i) of Eq. 4: softmax over the segments of the mean attention to their tokens, float64 [N]."""
    return _softmax(segment_attention)


def contextual_awareness_score(
    segment_perplexity: Sequence[float] | _Vector, segment_attention: Sequence[float] | _Vector
) -> float | None:
    """CAS of Eq. 5: cosine of the two scores, from the raw values of N segments each; in (0, 1].

    None with fewer than two segments: softmax over one value is 1, so a single segment would always score 1.
    Raises ValueError when the lengths differ or a value is not finite.
    """
    if len(segment_perplexity) != len(segment_attention):
        raise ValueError(f"{len(segment_perplexity)} segment perplexities, but {len(segment_attention)} attentions")
    if len(segment_perplexity) < 2:
        return None
    importance, attention = importance_score(segment_perplexity), segment_attention_score(segment_attention)
    # Neither norm is below 1/sqrt(N), since each vector sums to 1. Rounding may exceed 1 by an ulp.
    cosine = importance @ attention / (np.linalg.norm(importance) * np.linalg.norm(attention))
    return min(1.0, float(cosine))


def _softmax(values: Sequence[float] | _Vector) -> _Vector:
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise ValueError("softmax of a value that is not finite")
    if not vector.size:
        return vector
    weights = np.exp(vector - vector.max())
    return weights / weights.sum()
