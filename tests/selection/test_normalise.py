import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.selection.normalise import min_max, softmax

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


def test_equal_values_have_no_min_max() -> None:
    assert min_max([3.0, 3.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("normalise", [softmax, min_max])
def test_values_that_are_not_finite_are_refused(normalise) -> None:
    with pytest.raises(ValueError, match="1 of 2 values are not finite"):
        normalise([1.0, math.inf])
    with pytest.raises(ValueError, match="not finite"):
        normalise(np.array([math.nan]))


@pytest.mark.parametrize("normalise", [softmax, min_max])
def test_nothing_stays_nothing(normalise) -> None:
    assert normalise([]).size == 0
