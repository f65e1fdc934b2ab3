"""The paired bootstrap against one that draws question by question."""

import numpy as np
import pytest

from gateau_dagster.evaluation.statistics import compare
from gateau_dagster.evaluation.statistics.compare import resampled, total_of
from tests.evaluation.statistics.slow import slow_draws

RNG = np.random.default_rng(3)


def test_draws_are_means_over_questions_drawn_again() -> None:
    values = RNG.normal(size=(2, 7))
    found = resampled(values, total_of(["a"] * 7, by_group=False), draws=50, seed=4)
    for row, own in zip(found.T, values.tolist(), strict=True):
        assert row == pytest.approx(slow_draws(own, 50, 4))


def test_every_group_keeps_its_size_and_models_have_the_same_questions() -> None:
    groups = ["a"] * 3 + ["b"] * 9
    shift = np.array([1.0] * 3 + [5.0] * 9)  # the same for all questions of a group: no draw changes it
    values = RNG.normal(size=12)
    found = resampled(np.stack([values, values + shift]), total_of(groups, by_group=True), draws=200)
    assert found[:, 1] - found[:, 0] == pytest.approx(np.full(200, 3.0))


def test_draws_vary_as_the_questions_say() -> None:
    groups = ["a"] * 3 + ["b"] * 30
    values = RNG.normal(size=33)
    found = resampled(values[None], total_of(groups, by_group=True), draws=20_000)[:, 0]
    wanted = (values[:3].var(ddof=1) / 3 + values[3:].var(ddof=1) / 30) / 4
    assert found.var() == pytest.approx(wanted, rel=0.05)
    assert found.mean() == pytest.approx((values[:3].mean() + values[3:].mean()) / 2, abs=0.01)


def test_draws_come_in_pieces_that_fit_and_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values, total = RNG.normal(size=(3, 11)), total_of(["a"] * 11, by_group=False)
    whole = resampled(values, total, draws=30)
    monkeypatch.setattr(compare, "_CELLS", 40)
    assert np.array_equal(resampled(values, total, draws=30), whole)
    assert not np.array_equal(resampled(values, total, draws=30, seed=1), whole)


def test_a_single_question_does_not_vary() -> None:
    assert set(resampled(np.array([[2.0]]), total_of(["a"], by_group=True), draws=5).ravel()) == {2.0}
