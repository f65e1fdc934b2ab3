"""Near and far per token, and the border between them, against plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.models.prompt import Prompt
from gateau_dagster.scoring.segments import near_and_far, near_segments


def prompt(context: int, around: tuple[int, int, int] = (3, 4, 5)) -> Prompt:
    prefix, suffix, response = ((7,) * count for count in around)
    return Prompt(prefix=prefix, context=(9,) * context, suffix=suffix, response=response)


@given(context=st.integers(0, 60), length=st.integers(1, 20), sight=st.integers(1, 80))
def test_the_border_against_looking_at_every_token(context: int, length: int, sight: int) -> None:
    shown = {position for position in range(context) if context - position + 3 + 4 + 5 <= sight}
    segments = [range(begin, min(begin + length, context)) for begin in range(0, context, length)]
    near = sum(any(token in shown for token in segment) for segment in segments)
    assert near_segments(prompt(context), segment_length=length, sight=sight) == near


@pytest.mark.parametrize(("context", "near"), [(0, 0), (1, 1), (20, 1), (21, 1), (90, 1)])
def test_a_theta_a_that_sees_everything_leaves_the_last_segment_near(context: int, near: int) -> None:
    assert near_segments(prompt(context), segment_length=20, sight=None) == near


@pytest.mark.parametrize("near", [0, 1, 3, 4])
def test_against_plain_loops(near: int) -> None:
    rng = np.random.default_rng(near)
    without, segments = rng.exponential(2, 7), list(rng.exponential(2, (4, 7)))
    found = near_and_far(without, segments, near)
    for token in range(7):
        probabilities = [math.exp(-float(segment[token])) for segment in segments]
        closest = max([math.exp(-float(without[token])), *probabilities[4 - near :]])
        assert found[0][token] == np.float32(closest)
        assert found[1][token] == np.float32(max([0.0, *probabilities[: 4 - near]]))
    assert found[0].dtype == found[1].dtype == np.float32
