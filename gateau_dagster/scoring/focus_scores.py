"""Compute LADM's scores from attention between spans (Chen et al. 2025, Eqs. 2-5), without a model.

A sample is N spans s_0 .. s_{N-1} of `span_length` tokens. PFS(i, j) is the attention that span j pays to span i.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
Variant = Literal["paper", "program"]


FEWEST_STRIDES = 4
"""The authors' program scores a span only if more than the first spans and this many strides d precede it."""


@dataclass(frozen=True, kw_only=True)
class FocusPlan:
    """The pairs of spans that are measured; the defaults are the paper's (section 4.3).

    variant 'paper': Eqs. 2-5. 'program': the computation of the authors' released program. In a sample of T tokens it
    scores the last span and every `later_stride`-th before it. More than m + 4d spans must precede its first token. A
    sample's first T mod l tokens count here. Such a span j looks at j - d, j - 2d, .. down to m: neither n nor n_0 is
    read.

    The program's queries see only the tokens before their own span, and σ is the unbiased deviation (n - 1). Intervals
    are divided by T, and spans are weighted by their first token's position in T. A layer's score is the mean over its
    spans.
    """

    span_length: int = 128  # l
    first_spans: int = 1  # m: never measured, because they hold the attention sink
    local_spans: int = 4  # n: before each span, never measured; not read by 'program'
    earlier_stride: int = 4  # d of Eqs. 3 and 4
    later_stride: int = 4  # d of Eq. 5
    first_scored: int = 16  # n_0; not read by 'program'
    variant: Variant = "paper"

    def __post_init__(self) -> None:
        assert min(self.span_length, self.earlier_stride, self.later_stride) >= 1
        assert min(self.first_spans, self.local_spans) >= 0
        assert self.variant == "program" or self.first_scored > self.first_spans + self.local_spans, (
            "each scored span has a span to look at"
        )

    @property
    def lowest_scored(self) -> int:
        """Return the lowest j that can be scored; the program scores it only if tokens precede s_0."""
        if self.variant == "program":
            return self.first_spans + FEWEST_STRIDES * self.earlier_stride
        return self.first_scored

    @property
    def fewest_tokens(self) -> int:
        """Return the number of tokens of the shortest sample with a scored span."""
        return (self.lowest_scored + 1) * self.span_length + (self.variant == "program")

    def spans(self, tokens: int) -> int:
        """Return N, the number of whole spans of a sample."""
        return tokens // self.span_length

    def offset(self, tokens: int) -> int:
        """Return the tokens before s_0: the spans end where the sample ends, so that its last words (a response)
        count.
        """
        return tokens % self.span_length

    def start(self, j: int, tokens: int) -> int:
        """Return the first token of s_j."""
        return self.offset(tokens) + j * self.span_length

    def later(self, tokens: int) -> list[int]:
        """Return the j of Eq. 5, ascending; none for a sample of fewer than `fewest_tokens`."""
        spans = self.spans(tokens)
        if self.variant == "program":
            lowest = self.lowest_scored + (self.offset(tokens) == 0)
            return list(range(spans - 1, lowest - 1, -self.later_stride))[::-1]
        return list(range(self.first_scored, spans, self.later_stride))

    def earlier(self, j: int) -> range:
        """Return the i of Eqs. 3 and 4, ascending.

        They are m, m+d, .., m+Ld with L = floor((j-m-n-1)/d); for 'program', every d-th from j-d down to m.
        """
        if self.variant == "program":
            return range(j - self.earlier_stride, self.first_spans - 1, -self.earlier_stride)[::-1]
        return range(self.first_spans, j - self.local_spans, self.earlier_stride)


@dataclass(frozen=True, kw_only=True)
class FocusWeights:
    """The weights that count; all of them give the paper's score, all but one its ablations (Table 6).

    deviation: σ_j of Eq. 4 ('w/o std'). interval: j - i of Eq. 4. position: j/N of Eq. 5 (both off: 'w/o length').
    """

    deviation: bool = True
    interval: bool = True
    position: bool = True


@dataclass(frozen=True, kw_only=True)
class FocusSums:
    """The sums of each layer's PFS that Eq. 4 and its ablations need: float64 [layers, J] each, J = len(later)."""

    later: tuple[int, ...]  # the j, ascending
    deviation: Float64  # σ_j, Eq. 3
    focus: Float64  # Σ_i PFS(i, j)
    distant_focus: Float64  # Σ_i PFS(i, j)·(j - i), the interval counted in spans


def focus_sums(plan: FocusPlan, tokens: int, scores: Float64) -> FocusSums:
    """Return the sums of PFS of a sample of T = `tokens`.

    scores: PFS(i, j), float64 [layers, Σ_j len(earlier(j))]: for each j of plan.later, ascending, its i, ascending.
    """
    later = plan.later(tokens)
    earlier = [np.array(plan.earlier(j)) for j in later]
    parts = np.split(scores, np.cumsum([len(i) for i in earlier])[:-1], axis=1) if later else []
    assert sum(len(i) for i in earlier) == scores.shape[1]
    none = np.zeros((scores.shape[0], 0))
    intervals = [part * (j - i) for j, i, part in zip(later, earlier, parts, strict=True)]
    ddof = 1 if plan.variant == "program" else 0
    return FocusSums(
        later=tuple(later),
        deviation=np.stack([part.std(axis=1, ddof=ddof) for part in parts], axis=1) if later else none,
        focus=np.stack([part.sum(axis=1) for part in parts], axis=1) if later else none,
        distant_focus=np.stack([part.sum(axis=1) for part in intervals], axis=1) if later else none,
    )


def aggregated_focus_scores(sums: FocusSums, plan: FocusPlan, tokens: int, weights: FocusWeights) -> Float64:
    """Return AFS(j), Eq. 4: float64 [layers, J]. The program's variant divides the intervals, in tokens, by T."""
    scores = sums.distant_focus if weights.interval else sums.focus
    if weights.interval and plan.variant == "program":
        scores = scores * (plan.span_length / tokens)
    return sums.deviation * scores if weights.deviation else scores


def contextual_dependency_score(
    sums: FocusSums, plan: FocusPlan, tokens: int, weights: FocusWeights | None = None
) -> float | None:
    """Return CDS, Eq. 5, averaged over layers, of a sample of T = `tokens`; None if no span is scored.

    The equations leave open how to combine heads and layers. As in the program, PFS is the mean over a layer's heads,
    and the mean over layers comes last.
    """
    if not sums.later:
        return None
    weights = weights or FocusWeights()
    scores = aggregated_focus_scores(sums, plan, tokens, weights)
    return float((scores @ _span_weights(sums, plan, tokens, weights)).mean())


def added_by_span(sums: FocusSums, plan: FocusPlan, tokens: int, weights: FocusWeights | None = None) -> Float64:
    """Return each span's part of CDS (`contextual_dependency_score`), float64 [N]; 0 if it is not scored."""
    added = np.zeros(plan.spans(tokens))
    if sums.later:
        chosen = weights or FocusWeights()
        scores = aggregated_focus_scores(sums, plan, tokens, chosen).mean(axis=0)
        added[np.array(sums.later)] = scores * _span_weights(sums, plan, tokens, chosen)
    return added


def _span_weights(sums: FocusSums, plan: FocusPlan, tokens: int, weights: FocusWeights) -> Float64:
    # The weights of AFS(j) in CDS, float64 [J], are j/N; in the program's variant start/T over the number of spans.
    later, ones = np.array(sums.later, dtype=np.float64), np.ones(len(sums.later))
    if plan.variant == "program":
        starts = plan.offset(tokens) + later * plan.span_length
        return (starts / tokens if weights.position else ones) / len(later)
    return later / plan.spans(tokens) if weights.position else ones


def sums_from_lists(
    later: Sequence[int], deviation: Sequence[float], focus: Sequence[float], distant_focus: Sequence[float]
) -> FocusSums:
    """Return the sums from the lists of the table `span_attention/<model>`: layer after layer, [layers · J] each."""
    shape = (-1, len(later)) if later else (0, 0)
    found = (np.array(values, dtype=np.float64).reshape(shape) for values in (deviation, focus, distant_focus))
    one, two, three = found
    return FocusSums(later=tuple(later), deviation=one, focus=two, distant_focus=three)
