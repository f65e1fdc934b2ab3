"""Simulated experiments, whose truth is known: how often intervals hold it, and how often copies look different."""

from collections.abc import Callable

import numpy as np
import pytest

from gateau_dagster.evaluation.statistics.compare import (
    Matrix,
    Model,
    Total,
    compare,
    interval,
    question_spread,
    resampled,
    total_of,
)

EXPERIMENTS, DRAWS = 1000, 1000
Sample = Callable[[np.random.Generator, tuple[int, int]], Matrix]


def _grades(rng: np.random.Generator, size: tuple[int, int]) -> Matrix:
    """1 to 10, most of them high."""
    return np.clip(np.rint(rng.normal(7, 2.2, size)), 1, 10)


def _overlap(rng: np.random.Generator, size: tuple[int, int]) -> Matrix:
    """Word overlap in %: many zeros, some hundreds, the rest between."""
    kind = rng.random(size)
    return np.where(kind < 0.35, 0.0, np.where(kind < 0.5, 100.0, 100 * rng.beta(1.5, 2.5, size)))


def _right(share: float) -> Sample:
    return lambda rng, size: (rng.random(size) < share).astype(np.float64)


def _normal(rng: np.random.Generator, size: tuple[int, int]) -> Matrix:
    return rng.normal(size=size)


def _losses(rng: np.random.Generator, size: tuple[int, int]) -> Matrix:
    """Mean NLL of responses: a tail of hard ones."""
    return rng.gamma(3.0, 0.5, size)


def _covered(values: Matrix, total: Total, truth: float, span: float | None = None) -> float:
    """values: an experiment a row."""
    drawn = resampled(values, total, draws=DRAWS)
    low, high = interval(total.of(values), drawn, [question_spread(values, total, span=span)])
    return float(((low <= truth) & (truth <= high)).mean())


@pytest.mark.parametrize(
    ("sample", "groups", "span"),
    [
        (_normal, [50], None),
        (_grades, [50], None),
        (_grades, [10] * 8, None),
        (_overlap, [50], None),
        (_overlap, [40, 20, 20, 10], None),
        (_losses, [64], None),
        (_right(0.7), [50], 1.0),
        (_right(0.4), [20, 20, 20], 1.0),
        (_normal, [1] * 20 + [3] * 5, None),
        (_normal, [5], None),
    ],
    ids=["normal", "grades", "grades by category", "overlap", "overlap by set", "losses", "right", "right by length",
         "cells of one question", "five questions"],
)  # fmt: skip
def test_95_percent_intervals_hold_the_truth_in_93_to_97_percent(
    sample: Sample, groups: list[int], span: float | None
) -> None:
    total = total_of(np.repeat([str(place) for place in range(len(groups))], groups).tolist(), by_group=len(groups) > 1)
    rng = np.random.default_rng(11)
    truth = float(sample(rng, (1000, 1000)).mean())
    assert 0.93 <= _covered(sample(rng, (EXPERIMENTS, sum(groups))), total, truth, span) <= 0.97


@pytest.mark.parametrize("share", [0.9, 0.98, 0.995])
def test_where_nearly_all_is_right_they_do_not_promise_more(share: float) -> None:
    """There the outcomes are too few for exactly 95 %: without the two further questions it would be 22 % at 0.995."""
    values = _right(share)(np.random.default_rng(12), (EXPERIMENTS, 50))
    assert _covered(values, total_of(["a"] * 50, by_group=False), share, 1.0) >= 0.93


def _experiment(rng: np.random.Generator, *, seed_sd: float, chance_sd: float, effects: list[float]) -> list[Model]:
    """Models of two seeds each: questions, what a model does to them, what its seed does to all, and chance."""
    hard = rng.normal(size=40)
    models = []
    for place, effect in enumerate(effects):
        own = hard + effect + 0.3 * rng.normal(size=40)
        apart = seed_sd * rng.normal(size=(2, 1)) + chance_sd * rng.normal(size=(2, 40))
        models.append(Model(name=str(place), values=own + apart))
    return models


def _told(models: list[Model]) -> tuple[bool, bool, bool]:
    """Whether the value's and the difference's interval hold the truth (0.5, 0.5), and whether all may be the best."""
    found = compare(models, total_of(["a"] * 40, by_group=False), reference="0", draws=300)
    total, difference = found[1].total, found[1].difference
    assert difference is not None and total.low is not None and difference.low is not None
    assert total.high is not None and difference.high is not None
    return total.low <= 0.5 <= total.high, difference.low <= 0.5 <= difference.high, all(one.best for one in found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed_sd", "chance_sd", "others"),
    [
        (0.2, 0.3, [0.2, 0.4, 0.1]),
        (0.2, 0.3, []),
        (0.0, 0.8, [0.2, 0.4, 0.1]),
        (0.5, 0.0, [0.2, 0.4, 0.1]),
    ],
    ids=["both", "both, two models", "questions alone", "seeds above all"],
)
def test_intervals_over_questions_and_seeds_hold_the_truth(
    seed_sd: float, chance_sd: float, others: list[float]
) -> None:
    rng = np.random.default_rng(13)
    effects = [0.0, 0.5, *others]
    held = [
        _told(_experiment(rng, seed_sd=seed_sd, chance_sd=chance_sd, effects=effects))[:2] for _ in range(EXPERIMENTS)
    ]
    total, difference = np.mean(held, axis=0)
    assert 0.93 <= total <= 0.97 and 0.93 <= difference <= 0.97


@pytest.mark.parametrize("copies", [2, pytest.param(6, marks=pytest.mark.long)])
def test_copies_of_one_model_are_told_apart_in_at_most_5_percent(copies: int) -> None:
    """However many: the comparisons are corrected together. Each copy's answers are drawn anew."""
    rng, total, wrong = np.random.default_rng(14), total_of(["a"] * 50, by_group=False), 0
    for _ in range(EXPERIMENTS):
        hard = rng.beta(2, 1, 50)
        models = [Model(name=str(copy), values=_grades_of(hard, rng), trained=False) for copy in range(copies)]
        wrong += not all(each.best for each in compare(models, total, draws=20))
    assert wrong / EXPERIMENTS <= 0.05


def _grades_of(hard: np.ndarray, rng: np.random.Generator) -> Matrix:
    return np.rint(1 + 9 * np.clip(hard + 0.2 * rng.normal(size=len(hard)), 0, 1))[None]


@pytest.mark.long
def test_copies_trained_with_other_seeds_are_told_apart_in_at_most_5_percent() -> None:
    rng = np.random.default_rng(15)
    all_best = [
        _told(_experiment(rng, seed_sd=0.3, chance_sd=0.3, effects=[0.0] * 4))[2] for _ in range(EXPERIMENTS)
    ]  # fmt: skip
    assert 1 - np.mean(all_best) <= 0.05
