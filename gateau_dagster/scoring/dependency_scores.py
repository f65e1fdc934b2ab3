"""Compute the long-dependency score of Chen et al. 2024 (delta perplexity) from segment perplexities, without a model.

P(i) is the perplexity of segment i alone. P(i|j) is that of segment i directly after segment j, j < i.
"""

import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]
Variant = Literal["paper", "program"]


@dataclass(frozen=True, kw_only=True)
class DependencyRule:
    """The rule that turns pairs into a score; the defaults follow the paper and its program.

    variant 'program': the plain sum of (DST + DDI)·DSP. 'paper': α and β weight the two terms, as shares of α + β. The
    sum is divided by the number of evaluated pairs, so that it is at most 1 and does not grow with them. The paper
    leaves the normalisation open; this is our interpretation. window_segments: N of the distance; None: the sample's
    own segments.
    """

    variant: Variant = "paper"
    threshold: float = 0.1  # a pair counts when its strength is above it
    alpha: float = 1.0
    beta: float = 1.0
    window_segments: int | None = 256  # 32,768 tokens of 128

    def __post_init__(self) -> None:
        assert min(self.alpha, self.beta) >= 0 and self.alpha + self.beta > 0
        assert self.window_segments is None or self.window_segments >= 2


@dataclass(frozen=True, kw_only=True)
class SegmentPairs:
    """The measurements of one sample: `alone` float64 [N]; later i and earlier j int64 [pairs], `behind` = P(i|j)."""

    alone: Float64
    later: Int64
    earlier: Int64
    behind: Float64

    def __post_init__(self) -> None:
        assert self.later.shape == self.earlier.shape == self.behind.shape
        assert bool((self.earlier < self.later).all())


def choose_pairs(segments: int, limit: int, seed: str) -> list[tuple[int, int]]:
    """Return pairs (i, j) with j < i of a sample of N segments, ascending: all of them, or `limit` at random.

    The choice depends only on `seed` (the sample's digest), not on the shard or on other samples.
    """
    total = segments * (segments - 1) // 2
    if total <= limit:
        return [(i, j) for i in range(segments) for j in range(i)]
    # Numbers are drawn instead of pairs, so that the N²/2 pairs are not listed.
    places = np.array(sorted(random.Random(seed).sample(range(total), limit)))
    # Pair (i, j) has place i(i-1)/2 + j.
    firsts = np.arange(segments) * (np.arange(segments) - 1) // 2
    later = np.searchsorted(firsts, places, side="right") - 1
    return list(zip(later.tolist(), (places - firsts[later]).tolist(), strict=True))


def dependency_strength(pairs: SegmentPairs) -> Float64:
    """Return DST(i, j) = (P(i) - P(i|j)) / P(i): float64 [pairs], at most 1."""
    alone = pairs.alone[pairs.later]
    return (alone - pairs.behind) / alone


def dependency_distance(pairs: SegmentPairs, rule: DependencyRule) -> Float64:
    """Return DDI(i, j) = (i - j) / (N - 1), at most 1: float64 [pairs]."""
    segments = rule.window_segments or len(pairs.alone)
    return np.clip((pairs.later - pairs.earlier) / (segments - 1), 0.0, 1.0)


def dependency_specificity(pairs: SegmentPairs) -> Float64:
    """Return DSP(i) = 1 - H(softmax_j(P(i) - P(i|j))) / log n_i over the n_i evaluated j, in [0, 1]: float64 [pairs].

    It is 1 for a segment with one evaluated j. It is low for a repetition: a segment that all others help alike.
    """
    found = np.empty(len(pairs.later))
    for i in np.unique(pairs.later):
        mine = pairs.later == i
        found[mine] = _specificity(pairs.alone[i] - pairs.behind[mine])
    return found


def _specificity(gains: Float64) -> float:
    if gains.size == 1:
        return 1.0
    weights = np.exp(gains - gains.max())
    weights /= weights.sum()
    some = weights[weights > 0]  # x·log x is 0 at 0
    entropy = -float((some * np.log(some)).sum())
    return float(np.clip(1 - entropy / np.log(gains.size), 0.0, 1.0))


def long_dependency_score(pairs: SegmentPairs, rule: DependencyRule) -> float | None:
    """Return LDS: the sum of (DST + DDI)·DSP(i) over pairs above the threshold, normalised by `rule`; None without a
    pair.
    """
    if not len(pairs.later):
        return None
    counts, scores, (weights, number) = _pair_scores(pairs, rule)
    return float(scores[counts].sum()) / weights / number


def added_by_segment(pairs: SegmentPairs, rule: DependencyRule) -> Float64:
    """Return each segment's part of LDS as the later one of its pairs: float64 [N], for samples with a pair."""
    counts, scores, (weights, number) = _pair_scores(pairs, rule)
    counted = np.where(counts, scores, 0.0)
    return np.bincount(pairs.later, weights=counted, minlength=len(pairs.alone)) / weights / number


def _pair_scores(pairs: SegmentPairs, rule: DependencyRule) -> tuple[npt.NDArray[np.bool_], Float64, tuple[float, int]]:
    """Return whether each pair counts and its score, [pairs] each, and the two divisors of the sum."""
    strength = dependency_strength(pairs)
    program = rule.variant == "program"
    alpha, beta = (1.0, 1.0) if program else (rule.alpha, rule.beta)
    scores = (alpha * strength + beta * dependency_distance(pairs, rule)) * dependency_specificity(pairs)
    return strength > rule.threshold, scores, (1.0, 1) if program else (alpha + beta, len(scores))
