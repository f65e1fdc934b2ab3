"""Normalisations, ranks, correlations and AUROC against their definitions."""

import math
import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from gateau_dagster.selection.statistics import auroc, auroc_of_all, min_max, precision_at, softmax, spearman

values = st.lists(st.floats(-50, 50), min_size=1, max_size=20)


@given(values)
def test_softmax_is_the_definition(numbers: list[float]) -> None:
    powers = [math.exp(number) for number in numbers]
    assert softmax(numbers) == pytest.approx([power / sum(powers) for power in powers], rel=1e-9)


@given(values)
def test_min_max_is_the_definition(numbers: list[float]) -> None:
    low, high = min(numbers), max(numbers)
    wanted = [(number - low) / (high - low) if high > low else 0.0 for number in numbers]
    assert min_max(numbers) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_extreme_values_neither_overflow_nor_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert softmax([1.7e308, -1.7e308]).tolist() == [1.0, 0.0]
        assert softmax([1e300, 1e300]).tolist() == [0.5, 0.5]
        assert min_max([1.7e308, -1.7e308, 0.0]).tolist() == [1.0, 0.0, 0.5]
        assert min_max([3.0, 3.0]).tolist() == [0.0, 0.0]
        assert softmax([]).size == min_max([]).size == 0


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (softmax, ([1.0, math.inf],), "1 of 2 values are not finite"),
        (min_max, ([1.0, math.inf],), "1 of 2 values are not finite"),
        (softmax, (np.array([math.nan]),), "not finite"),
        (min_max, (np.array([math.nan]),), "not finite"),
        (auroc_of_all, ([1.0, -math.inf, math.nan], [True, False, True]), "1 of 2 values are not finite"),
        (auroc, ([1.0, 2.0], [True, True]), "with and without"),
        (auroc, ([1.0, 2.0], [False, False]), "with and without"),
        (auroc, ([1.0, 2.0], [True]), "2 scores, but 1 labels"),
        (spearman, ([1.0, 2.0], [1.0]), "2 scores against 1"),
        (precision_at, ([1.0, 2.0], [True, False], 0), "precision at 0 of 2"),
        (precision_at, ([1.0, 2.0], [True, False], 3), "precision at 3 of 2"),
    ],
)
def test_what_has_no_value_is_refused(function: Any, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*given)


scored = st.lists(st.tuples(st.integers(0, 4).map(float), st.booleans()), min_size=2, max_size=15)


@given(scored)
def test_auroc_counts_the_pairs_in_order(pairs: list[tuple[float, bool]]) -> None:
    positive = [score for score, label in pairs if label]
    negative = [score for score, label in pairs if not label]
    assume(positive and negative)
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    scores, labels = zip(*pairs, strict=True)
    assert auroc(scores, labels) == pytest.approx(won / (len(positive) * len(negative)), rel=1e-12)


@given(st.lists(st.tuples(st.none() | st.integers(-2, 2).map(float), st.booleans()), min_size=2, max_size=15))
def test_samples_without_a_score_are_the_last(pairs: list[tuple[float | None, bool]]) -> None:
    assume({label for _, label in pairs} == {True, False})
    scores, labels = zip(*pairs, strict=True)
    below = [-9.0 if score is None else score for score in scores]
    given = [float("nan") if score is None else score for score in scores]
    assert auroc_of_all(given, labels) == pytest.approx(auroc(below, labels), rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 3).map(float), st.booleans()), min_size=1, max_size=8), st.data())
def test_precision_is_the_mean_over_all_ways_to_break_ties(pairs: list[tuple[float, bool]], data) -> None:
    count = data.draw(st.integers(1, len(pairs)))
    scores, labels = zip(*pairs, strict=True)
    best = sum(sorted(scores, reverse=True)[:count])
    ways = [chosen for chosen in combinations(range(len(pairs)), count) if sum(scores[i] for i in chosen) == best]
    wanted = np.mean([sum(labels[i] for i in chosen) / count for chosen in ways])
    assert precision_at(scores, labels, count) == pytest.approx(wanted, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20))
def test_spearman_is_scipys(pairs: list[tuple[int, int]]) -> None:
    first, second = ([float(value) for value in side] for side in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert spearman(first, second) is None
        return
    assert spearman(first, second) == pytest.approx(scipy.stats.spearmanr(first, second)[0], abs=1e-12)
