"""The contextual awareness that the `robust` preset uses: what the far context adds, from the `cam` table's figures."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateau_dagster.selection.normalise import Vector

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Segmented:
    """Per sample: context tokens that theta_B and theta_A saw, and segments N, int64 [|D|] each.

    `segment_perplexity`: PPL_B(y | s_i, x) of all samples' segments, one sample after the other, [ΣN].
    `segment_length`: L, tokens of every segment but a shorter last one.
    """

    context_tokens: Int64
    visible_tokens: Int64
    segments: Int64
    segment_perplexity: Vector
    segment_length: int

    @property
    def hides(self) -> bool:
        """Whether theta_A did not see all of some context."""
        return bool((self.context_tokens > self.visible_tokens).any())


def near_segments(segmented: Segmented) -> Int64:
    """How many segments at the end of each context count as near, int64 [|D|].

    Near is what theta_A saw any token of. Where theta_A saw every context in full (`context: full`), its sight
    marks no border, and only the last segment is near.
    """
    if not segmented.hides:
        return np.minimum(segmented.segments, 1)
    hidden = segmented.context_tokens - segmented.visible_tokens
    return segmented.segments - np.clip(hidden // segmented.segment_length, 0, segmented.segments)


def far_gain(segmented: Segmented) -> Vector:
    """max(0, max over far i of P(y|s_i,x) - max over near i of P(y|s_i,x)), float64 [|D|], in [0, 1].

    P = 1 / PPL_B(y | s_i, x), the geometric mean probability of a response token, so that no unit or scale is left.
    0 where every segment is near. NaN below two segments, where there is nothing to compare (as in Eq. 5).
    """
    probability = 1.0 / segmented.segment_perplexity
    assert probability.size == segmented.segments.sum()
    ends = np.cumsum(segmented.segments)
    borders = ends - near_segments(segmented)
    far = _largest(probability, ends - segmented.segments, borders)
    gains = np.fmax(0.0, far - _largest(probability, borders, ends))
    # A context that is near as a whole gains nothing.
    gains[borders == ends - segmented.segments] = 0.0
    gains[segmented.segments < 2] = np.nan
    return gains


def in_full_sight(gains: Vector) -> Vector:
    """What `far_gain` finds for samples that hide nothing, among others that do: all their segments are near."""
    return np.where(np.isnan(gains), np.nan, 0.0)


def _largest(values: Vector, starts: Int64, ends: Int64) -> Vector:
    """The largest of each values[start:end], float64; 0 where there is none. Start and end never fall."""
    found = np.zeros(starts.size)
    some = ends > starts
    if some.any():
        # Between the wanted ranges lie others, which are found too and left out.
        borders = np.column_stack([starts[some], ends[some]]).ravel()
        found[some] = np.maximum.reduceat(np.append(values, 0.0), borders)[::2]
    return found
