"""Parts of the CAM study against slow definitions."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Script = Callable[[str], ModuleType]


def test_rank_share_counts_what_is_below_and_half_of_the_ties(script: Script) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 20):
        numbers = rng.integers(-3, 4, size=size).astype(float)
        wanted = [(sum(other < each for other in numbers) + sum(other == each for other in numbers) / 2) / size
                  for each in numbers]  # fmt: skip
        assert script("cam_study").rank_share(numbers) == pytest.approx(wanted, rel=1e-12)


def sample(script: Script, n_far: int, tokens: int = 30) -> Any:
    rng = np.random.default_rng(n_far)
    segments = 5
    return script("common_heads").Heads(
        mass=rng.random((2, tokens + 1, segments)), peak=rng.random((2, tokens + 1, segments)),
        alone=rng.random((segments, tokens)), full=rng.random(tokens), short=rng.random(tokens),
        without=rng.random(tokens), tokens=np.full(segments, 4.0), n_far=np.array(n_far),
    )  # fmt: skip


@pytest.mark.parametrize("n_far", [0, 1, 3, 5])
def test_fg_is_the_mean_of_the_best_gains(script: Script, n_far: int) -> None:
    one = sample(script, n_far)
    gains = []
    for t in range(30):
        near = max([one.without[t], *(one.alone[i, t] for i in range(n_far, 5))])
        gains.append(max([0.0, *(one.alone[i, t] - near for i in range(n_far))]))
    expected = sum(sorted(gains)[-3:]) / 3  # a tenth of 30
    assert script("common_cam").far_gain(one) == pytest.approx(expected, rel=1e-12)


def test_every_score_is_a_number_of_any_sample(script: Script) -> None:
    cam = script("common_cam")
    for n_far in (0, 2, 5):
        one = sample(script, n_far)
        for family in cam.FAMILIES.values():
            for name, score in family.items():
                assert np.isfinite(score(one, one.mass.mean(axis=0)[1:], one.peak.max(axis=0)[1:])), name
