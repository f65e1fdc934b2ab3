"""The best far segment of each token and what each segment gave, against plain loops."""

import math

import numpy as np
import pytest

from gateau_dagster.scoring.segment_gains import NOTED, best_far_segment, segment_gains
from gateau_dagster.scoring.segments import near_and_far


def drawn(seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng.exponential(2, 7), list(rng.exponential(2, (4, 7)))


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_both_are_those_of_plain_loops(count: int) -> None:
    without, segments = drawn(count)
    near, far = near_and_far(without, segments, count)
    best, gains = best_far_segment(near, segments, count), segment_gains(without, near, segments, count)
    p = [[math.exp(-float(nll)) for nll in segment] for segment in segments]
    for token, segment in enumerate(best):
        others = [p[place][token] for place in range(4 - count)]
        gaining = bool(others) and max(others) - float(near[token]) >= NOTED
        assert segment == (others.index(max(others)) if gaining else None)
    for place, gain in enumerate(gains):
        base = near if place < 4 - count else np.exp(-without)
        expected = math.fsum(max(0.0, p[place][token] - float(base[token])) for token in range(7))
        assert gain == pytest.approx(expected, abs=1e-6)
    if count < 4:
        most = max(gains[: 4 - count])
        assert most <= math.fsum(max(0.0, float(b) - float(a)) for a, b in zip(near, far, strict=True)) + 1e-6


def test_of_equal_segments_the_first_counts_whatever_the_rounding() -> None:
    nll = np.array([0.2, 0.2])
    segments = [nll + 5, nll, nll - 1e-7, nll + 1e-7, nll + 9]
    near = np.exp(-nll - 3).astype(np.float32)
    assert best_far_segment(near, segments, 1) == [1, 1]
    assert best_far_segment(near, segments[::-1], 1) == [1, 1]


def test_a_gain_that_is_rounding_has_no_segment() -> None:
    certain = np.array([1e-7, 1e-7, 2.0])
    near = np.exp(-certain - np.array([1e-4, 0.1, 1e-4])).astype(np.float32)
    assert best_far_segment(near, [certain, certain], 0) == [None, 0, None]


def test_without_a_context_nothing_gave_anything() -> None:
    near = np.array([0.5, 0.5], dtype=np.float32)
    assert best_far_segment(near, [], 0) == [None, None]
    assert segment_gains(np.array([0.1, 0.1]), near, [], 0) == []
