"""Segments of a context, what of it is near, and FG: against plain loops."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.segments import (
    NOTED,
    best_far_segment,
    counted_tokens,
    cut_segments,
    far_gain,
    near_and_far,
    near_segments,
    segment_gains,
    segment_means,
    segment_prompts,
)
from tests.tiny_models import samples, tokenizer


@given(st.integers(0, 500), st.integers(1, 200))
def test_segments_cover_the_context_once(tokens: int, length: int) -> None:
    spans = cut_segments(tokens, length)
    assert [t for a, b in spans for t in range(a, b)] == list(range(tokens))
    assert all(b - a == length for a, b in spans[:-1])
    assert len(spans) == -(-tokens // length)


def test_segment_prompts_reuse_the_truncated_contexts_tokens() -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=200)
    assert prompt.truncated_tokens > 0
    cut = segment_prompts(prompt, 30)
    assert sum((p.context for p in cut), ()) == prompt.context
    assert {(p.prefix, p.suffix, p.response) for p in cut} == {(prompt.prefix, prompt.suffix, prompt.response)}


def test_segment_means_average_each_segments_own_tokens() -> None:
    attention = np.array([1.0, 3.0, 5.0, 7.0, 100.0])
    assert segment_means(attention, 2) == [2.0, 6.0, 100.0]
    assert segment_means(attention[:0], 2) == []


def prompt(context: int, around: tuple[int, int, int] = (3, 4, 5)) -> Prompt:
    prefix, suffix, response = ((7,) * count for count in around)
    return Prompt(prefix=prefix, context=(9,) * context, suffix=suffix, response=response)


@given(context=st.integers(0, 60), length=st.integers(1, 20), visible_tokens=st.integers(1, 80))
def test_the_border_against_looking_at_every_token(context: int, length: int, visible_tokens: int) -> None:
    shown = {position for position in range(context) if context - position + 3 + 4 + 5 <= visible_tokens}
    segments = [range(begin, min(begin + length, context)) for begin in range(0, context, length)]
    near = sum(any(token in shown for token in segment) for segment in segments)
    assert near_segments(prompt(context), segment_length=length, visible_tokens=visible_tokens) == near


@pytest.mark.parametrize(("context", "near"), [(0, 0), (1, 1), (20, 1), (21, 1), (90, 1)])
def test_a_theta_a_that_sees_everything_leaves_the_last_segment_near(context: int, near: int) -> None:
    assert near_segments(prompt(context), segment_length=20, visible_tokens=None) == near


@pytest.mark.parametrize("near", [0, 1, 3, 4])
def test_near_and_far_are_those_of_plain_loops(near: int) -> None:
    rng = np.random.default_rng(near)
    without, segments = rng.exponential(2, 7), list(rng.exponential(2, (4, 7)))
    found = near_and_far(without, segments, near)
    for token in range(7):
        probabilities = [math.exp(-float(segment[token])) for segment in segments]
        closest = max([math.exp(-float(without[token])), *probabilities[4 - near :]])
        assert found[0][token] == np.float32(closest)
        assert found[1][token] == np.float32(max([0.0, *probabilities[: 4 - near]]))
    assert found[0].dtype == found[1].dtype == np.float32


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
def test_far_gain_is_that_of_plain_loops(tokens: int, top: str) -> None:
    near, far = np.random.default_rng(tokens).random((2, tokens)).astype(np.float32)
    expected = slow_far_gain([float(p) for p in near], [float(p) for p in far], Fraction(top))
    assert far_gain(near, far, segments=2, top=float(Fraction(top))) == pytest.approx(expected, rel=1e-12)


def test_a_tenth_counts_by_default_and_two_segments_are_needed() -> None:
    assert far_gain([0.0] * 30, [0.9, 0.6, 0.3] + [0.0] * 27, segments=9) == pytest.approx(0.6)
    assert far_gain([0.3, 0.2, 0.1], [0.0, 0.0, 0.0], segments=2) == 0.0
    assert [far_gain([0.1, 0.1], [0.9, 0.9], segments=segments) for segments in (0, 1)] == [None, None]


@pytest.mark.parametrize("percent", [7, 10, 14, 28, 55])
def test_rounding_counts_no_token_more(percent: int) -> None:
    """0.07·100, 0.14·50, 0.28·25 and 0.55·100 are a little more than whole numbers as floats."""
    sizes = np.arange(1, 2000)
    exact = [max(2, math.ceil(Fraction(percent * int(n), 100))) for n in sizes]
    assert counted_tokens(sizes, top=percent / 100).tolist() == exact


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
