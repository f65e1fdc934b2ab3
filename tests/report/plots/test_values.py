"""Numbers for plots."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.plotting import edges, finite, finite_pairs, log_edges

_FRAME = pl.DataFrame({"x": [1.0, None, math.nan, math.inf, 5.0], "y": [1.0, 2.0, 3.0, 4.0, None]})


def test_only_finite_values_are_drawn() -> None:
    assert finite(_FRAME, "x").tolist() == [1.0, 5.0]
    assert finite_pairs(_FRAME, "x", "y").rows() == [(1.0, 1.0)]
    assert finite(pl.DataFrame({"x": [None, None]}), "x").size == 0
    assert finite(pl.DataFrame({"x": [1, 2]}), "x").dtype == np.float64


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=50))
def test_edges_rise_and_cover_every_value(values: list[float]) -> None:
    bins = edges(np.array(values))
    assert (np.diff(bins) > 0).all()
    counts, _ = np.histogram(values, bins)
    assert counts.sum() == len(values)


@pytest.mark.parametrize("span", [1e-12, 1e-9, 1.0, 1e9])
def test_a_narrow_span_still_gets_many_bins(span: float) -> None:
    values = 1e-5 + span * np.linspace(0, 1, 1000)
    assert len(edges(values)) == 21
    assert len(edges(values, most=8)) == 9


def test_equal_values_get_one_bin_and_none_a_dummy() -> None:
    assert len(edges(np.array([0.3, 0.3]))) == 2
    assert edges(np.array([])).tolist() == [0.0, 1.0]


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50))
def test_log_edges_cover_every_value(values: list[int]) -> None:
    counted = np.maximum(np.array(values, dtype=float), 1.0)
    assert np.histogram(counted, log_edges(np.array(values, dtype=float)))[0].sum() == len(values)


def test_log_edges_are_equally_wide_in_ratio_and_start_at_one() -> None:
    bins = log_edges(np.array([0.0, 3.0, 1024.0]))
    assert bins[0] == 1.0
    assert bins[-1] == pytest.approx(1024)
    np.testing.assert_allclose(np.diff(np.log(bins)), np.log(1024) / (len(bins) - 1))
