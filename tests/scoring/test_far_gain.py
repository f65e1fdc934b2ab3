"""FG of one sample against plain loops over the tokens."""

import math
from fractions import Fraction

import numpy as np
import pytest

from gateau_dagster.scoring.far_gain import counted_tokens, far_gain


def slow_far_gain(near: list[float], far: list[float], top: Fraction) -> float:
    """Takes the largest gain again and again."""
    gains = [b - a if b > a else 0.0 for a, b in zip(near, far, strict=True)]
    best = []
    while gains and len(best) < max(2, math.ceil(top * len(near))):
        best.append(max(gains))
        gains.remove(best[-1])
    return math.fsum(best) / len(best)


@pytest.mark.parametrize("top", ["1/10", "3/10", "1"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 10, 20, 21, 30, 31, 70, 400])
def test_against_plain_loops(tokens: int, top: str) -> None:
    near, far = np.random.default_rng(tokens).random((2, tokens)).astype(np.float32)
    expected = slow_far_gain([float(p) for p in near], [float(p) for p in far], Fraction(top))
    assert far_gain(near, far, segments=2, top=float(Fraction(top))) == pytest.approx(expected, rel=1e-12)


def test_a_tenth_counts_by_default() -> None:
    assert far_gain([0.0] * 30, [0.9, 0.6, 0.3] + [0.0] * 27, segments=9) == pytest.approx(0.6)


def test_nothing_far_is_no_gain() -> None:
    assert far_gain([0.3, 0.2, 0.1], [0.0, 0.0, 0.0], segments=2) == 0.0


@pytest.mark.parametrize("segments", [0, 1])
def test_below_two_segments_there_is_nothing_to_compare(segments: int) -> None:
    assert far_gain([0.1, 0.1], [0.9, 0.9], segments=segments) is None


@pytest.mark.parametrize("percent", [7, 10, 14, 28, 55])
def test_rounding_counts_no_token_more(percent: int) -> None:
    """0.07·100, 0.14·50, 0.28·25 and 0.55·100 are a little more than whole numbers as floats."""
    sizes = np.arange(1, 2000)
    exact = [max(2, math.ceil(Fraction(percent * int(n), 100))) for n in sizes]
    assert counted_tokens(sizes, top=percent / 100).tolist() == exact
