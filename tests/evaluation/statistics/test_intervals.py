"""Intervals and p-values against Student's, and Holm's correction against its definition."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.evaluation.statistics.compare import (
    VarianceSource,
    half_width,
    holm,
    interval,
    p_value,
    question_spread,
    resampled,
    total_of,
)
from tests.evaluation.statistics.slow import slow_holm

RNG = np.random.default_rng(6)


def _interval(values: np.ndarray, draws: int = 20_000) -> tuple[float, float]:
    total = total_of(["a"] * values.shape[-1], by_group=False)
    drawn = resampled(values[None], total, draws=draws)
    low, high = interval(total.of(values[None]), drawn, [question_spread(values[None], total)])
    return float(low[0]), float(high[0])


@pytest.mark.parametrize("count", [10, 200])
def test_of_symmetric_values_it_is_student_s(count: int) -> None:
    values = scipy.stats.norm.ppf((np.arange(count) + 0.5) / count)
    error = values.std(ddof=1) / count**0.5
    wanted = scipy.stats.t.ppf(0.975, count - 1) * error
    assert _interval(values) == pytest.approx((-wanted, wanted), rel=0.04)


def test_of_skewed_values_it_reaches_further_to_the_long_side() -> None:
    values = scipy.stats.expon.ppf((np.arange(20) + 0.5) / 20)
    low, high = _interval(values)
    assert high - values.mean() > 1.15 * (values.mean() - low)


def _spread(variance: float, freedom: float) -> VarianceSource:
    return VarianceSource(variance=np.array([variance]), freedom=np.array([freedom]))


def test_without_any_variation_it_is_a_point_and_with_seeds_student_s() -> None:
    estimate, draws = np.array([2.0]), np.full((9, 1), 2.0)
    low, high = interval(estimate, draws, [_spread(0, 5), _spread(0, 0)])
    assert low[0] == high[0] == 2.0
    low, high = interval(estimate, draws, [_spread(0, 5), _spread(1, 2)])
    assert high[0] - 2 == pytest.approx(scipy.stats.t.ppf(0.975, 2)) == pytest.approx(2 - low[0])


def test_half_widths_of_questions_and_seeds_add_as_squares() -> None:
    wanted = (4 * scipy.stats.t.ppf(0.95, 9) ** 2 + 3 * scipy.stats.t.ppf(0.95, 2) ** 2) ** 0.5
    assert half_width([_spread(4, 9), _spread(3, 2)], 0.05) == pytest.approx([wanted])


def test_what_is_not_known_has_no_ends() -> None:
    ends = interval(np.zeros(1), np.zeros((3, 1)), [_spread(np.nan, 0), _spread(0, 0)])
    assert np.isnan(ends).all()


def test_p_values_are_those_of_a_paired_t_test() -> None:
    one, two = RNG.normal(size=(2, 12))
    total = total_of(["a"] * 12, by_group=False)
    apart = (one - two)[None]
    found = p_value(total.of(apart), [question_spread(apart, total), _spread(0, 0)])
    assert found[0] == pytest.approx(scipy.stats.ttest_rel(one, two).pvalue)


def test_a_p_value_is_where_the_interval_ends_at_0() -> None:
    parts = [_spread(4, 9), _spread(3, 2)]
    p = p_value(np.array([7.0]), parts)
    assert half_width(parts, p[0] / 2) == pytest.approx([7.0], rel=1e-5)


def test_p_values_at_the_ends() -> None:
    assert p_value(np.zeros(1), [_spread(0, 1)])[0] == pytest.approx(1)
    assert p_value(np.ones(1), [_spread(0, 1)])[0] < 1e-11
    assert p_value(np.ones(1), [_spread(np.nan, 0)])[0] == pytest.approx(1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_its_definition(p: list[float]) -> None:
    assert holm(np.array(p)) == pytest.approx(slow_holm(p))
