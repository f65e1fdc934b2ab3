"""Dependency strength, distance and specificity on paper, and against plain loops."""

import math

import numpy as np
import pytest

from gateau_dagster.scoring.dependency_scores import (
    DependencyRule,
    SegmentPairs,
    Variant,
    choose_pairs,
    dependency_distance,
    dependency_specificity,
    dependency_strength,
    long_dependency_score,
)
from tests.scoring.slow_pairs import slow_lds

# Three segments: P(1) = 10, P(2) = 20; P(1|0) = 5, P(2|0) = 20 - ln 3, P(2|1) = 20.
ALONE = [99.0, 10.0, 20.0]
BEHIND = {(1, 0): 5.0, (2, 0): 20.0 - math.log(3), (2, 1): 20.0}


def _pairs(alone: list[float], behind: dict[tuple[int, int], float]) -> SegmentPairs:
    return SegmentPairs(
        alone=np.array(alone),
        later=np.array([i for i, _ in behind], dtype=np.int64),
        earlier=np.array([j for _, j in behind], dtype=np.int64),
        behind=np.array(list(behind.values())),
    )


def test_strength_distance_and_specificity_on_paper() -> None:
    pairs = _pairs(ALONE, BEHIND)
    # (10 - 5) / 10, ln 3 / 20, 0 / 20
    np.testing.assert_allclose(dependency_strength(pairs), [0.5, math.log(3) / 20, 0.0])
    # 1, 2 and 1 segments apart of at most N - 1 = 2; of a window of 5 segments: of at most 4.
    np.testing.assert_allclose(dependency_distance(pairs, DependencyRule(window_segments=None)), [0.5, 1.0, 0.5])
    np.testing.assert_allclose(dependency_distance(pairs, DependencyRule(window_segments=5)), [0.25, 0.5, 0.25])
    # Segment 1 has one pair: 1. Segment 2 gains ln 3 and 0: the softmax is 3/4 and 1/4, its entropy
    # 2 ln 2 - 3/4 ln 3, of at most ln 2.
    two = 1 - (2 * math.log(2) - 0.75 * math.log(3)) / math.log(2)
    np.testing.assert_allclose(dependency_specificity(pairs), [1.0, two, two])


def test_score_on_paper() -> None:
    pairs = _pairs(ALONE, BEHIND)
    # Above 0.1 is the pair (1, 0) alone: (0.5 + 0.5) * 1.
    rule = DependencyRule(variant="program", window_segments=3)
    assert long_dependency_score(pairs, rule) == pytest.approx(1.0)
    # With α = 3 and β = 1: (3 * 0.5 + 0.5) / 4 over three evaluated pairs.
    rule = DependencyRule(alpha=3, beta=1, window_segments=3)
    assert long_dependency_score(pairs, rule) == pytest.approx(0.5 / 3)
    assert long_dependency_score(pairs, DependencyRule(threshold=0.5)) == 0.0


def test_distance_beyond_the_window_is_one() -> None:
    pairs = _pairs([9.0, 9.0, 9.0, 9.0], {(3, 0): 1.0, (3, 2): 1.0})
    np.testing.assert_allclose(dependency_distance(pairs, DependencyRule(window_segments=3)), [1.0, 0.5])


def test_segment_that_all_others_help_alike_is_not_specific() -> None:
    pairs = _pairs([1.0] * 3 + [900.0], {(3, 0): 2.0, (3, 1): 2.0, (3, 2): 2.0})
    np.testing.assert_allclose(dependency_specificity(pairs), 0.0, atol=1e-12)
    # One helps by so much that the others' weight is 0 in float64: as specific as can be.
    pairs = _pairs([1.0] * 3 + [1e6], {(3, 0): 2.0, (3, 1): 1e5, (3, 2): 1e5})
    np.testing.assert_allclose(dependency_specificity(pairs), 1.0)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("threshold", [-1.0, 0.1, 0.6])
def test_agrees_with_plain_loops(variant: Variant, threshold: float) -> None:
    rng = np.random.default_rng(0)
    alone = rng.lognormal(1, 0.5, 12).tolist()
    behind = {(i, j): alone[i] * rng.uniform(0.2, 1.1) for i, j in choose_pairs(12, 40, "seed")}
    rule = DependencyRule(variant=variant, threshold=threshold, alpha=0.7, beta=1.9, window_segments=8)
    want = slow_lds(alone, behind, segments=8, threshold=threshold, alpha=0.7, beta=1.9, program=variant == "program")
    assert long_dependency_score(_pairs(alone, behind), rule) == pytest.approx(want, rel=1e-12)
    assert want > 0


def test_sample_without_a_pair_has_no_score() -> None:
    assert long_dependency_score(_pairs([3.0], {}), DependencyRule()) is None


@pytest.mark.parametrize(("segments", "limit"), [(0, 5), (1, 5), (2, 1), (10, 45), (10, 5000)])
def test_few_pairs_are_all_taken(segments: int, limit: int) -> None:
    everything = [(i, j) for i in range(segments) for j in range(i)]
    assert choose_pairs(segments, limit, "a") == everything


def test_many_pairs_are_a_sample_that_the_seed_decides() -> None:
    chosen = choose_pairs(60, 500, "a")
    assert len(set(chosen)) == len(chosen) == 500
    assert chosen == sorted(chosen) and all(0 <= j < i < 60 for i, j in chosen)
    assert choose_pairs(60, 500, "a") == chosen != choose_pairs(60, 500, "b")
    # Every pair may come, with the same chance: 500 of 1770; over 40 seeds each is expected 11.3 times.
    counts = np.zeros((60, 60))
    for seed in range(40):
        for i, j in choose_pairs(60, 500, str(seed)):
            counts[i, j] += 1
    taken = counts[np.tril_indices(60, -1)]
    assert taken.min() > 0 and taken.max() < 26
    assert abs(taken[:885].mean() - taken[885:].mean()) < 0.5
