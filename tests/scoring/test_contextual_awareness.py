"""Eqs. 3-5 against plain-Python twins and at the edges of float64; the row of `cam`, and what cannot be a row."""

import dataclasses
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.contextual_awareness import (
    CamFigures,
    CamRow,
    cam_row,
    contextual_awareness_score,
    importance_score,
    segment_attention_score,
)
from tests.scoring.reference import reference_cas, reference_softmax
from tests.tiny_models import samples

_PAIRS = st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(_PAIRS)
def test_scores_agree_with_the_twin(pairs: list[tuple[float, float]]) -> None:
    perplexity, attention = [p for p, _ in pairs], [a for _, a in pairs]
    np.testing.assert_allclose(importance_score(perplexity), reference_softmax(perplexity), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(segment_attention_score(attention), reference_softmax(attention), rtol=1e-12)
    cas = contextual_awareness_score(perplexity, attention)
    assert cas == pytest.approx(reference_cas(perplexity, attention), rel=1e-12)
    assert cas is not None and 0 < cas <= 1


def test_known_value() -> None:
    # softmax of (ln 3, 0) is (3/4, 1/4); of (0, 0) is (1/2, 1/2): cosine 0.5 / (sqrt(10)/4 * sqrt(1/2)).
    assert importance_score([math.log(3), 0.0]) == pytest.approx([0.75, 0.25])
    assert contextual_awareness_score([math.log(3), 0.0], [0.0, 0.0]) == pytest.approx(2 / math.sqrt(5))


@pytest.mark.parametrize("values", [[], [3.0]])
def test_fewer_than_two_segments_have_no_score(values: list[float]) -> None:
    assert contextual_awareness_score(values, values) is None


def test_huge_perplexities_do_not_overflow() -> None:
    with np.errstate(over="raise", invalid="raise"):
        scores = importance_score([1e300, 2.0, 1.5e300])
        assert scores.tolist() == [0.0, 0.0, 1.0]
        assert contextual_awareness_score([1e300, 1e300], [0.1, 0.1]) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        contextual_awareness_score([1.0, bad], [0.1, 0.2])


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 segment perplexities, but 1 attentions"):
        contextual_awareness_score([1.0, 2.0], [0.1])


def test_module_needs_no_torch() -> None:
    import subprocess

    code = "import sys, gateau_dagster.scoring.contextual_awareness; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NLL = [np.array([1.0, 2.0]), np.array([0.5, 0.1])]
ALONE = np.array([0.7, 3.0])


def figures(segments: list[np.ndarray], attention: np.ndarray | None, alone: np.ndarray = ALONE) -> CamFigures:
    return CamFigures(without_context=alone, segments=segments, attention=attention, near=min(len(segments), 1))


def test_row_has_the_promised_columns() -> None:
    assert [field.name for field in dataclasses.fields(CamRow)] == [column.name for column in tables.CAM]


def test_row_from_token_figures() -> None:
    row = cam_row(samples()[0], figures(NLL, np.array([1.0, 3.0, 5.0])), segment_length=2)
    assert row.segment_perplexity == pytest.approx([math.exp(1.5), math.exp(0.3)])
    assert row.segment_attention == [2.0, 5.0]
    assert row.segments == 2
    assert row.cas == contextual_awareness_score(row.segment_perplexity, row.segment_attention)
    assert row.near_probability == pytest.approx([math.exp(-0.5), math.exp(-0.1)])
    assert row.far_probability == pytest.approx([math.exp(-1.0), math.exp(-2.0)])
    assert row.near_segments == 1
    assert row.no_context_probability == pytest.approx([math.exp(-0.7), math.exp(-3.0)])
    assert row.far_segment == [None, None]
    assert row.segment_gain == pytest.approx([0.0, math.exp(-0.5) - math.exp(-0.7) + math.exp(-0.1) - math.exp(-3.0)])
    # Two tokens: e^-1 - e^-0.5 and e^-2 - e^-0.1, both below nothing.
    assert row.far_gain == 0.0
    turned = cam_row(samples()[0], figures(NLL[::-1], np.array([1.0, 3.0, 5.0])), segment_length=2)
    gains = [math.exp(-0.5) - math.exp(-0.7), math.exp(-0.1) - math.exp(-2.0)]
    assert turned.far_gain == pytest.approx(sum(gains) / 2, rel=1e-6)
    assert turned.far_segment == [0, 0] and turned.segment_gain[0] == pytest.approx(sum(gains), rel=1e-6)
    assert (row.sample_id, row.digest) == ("s0", samples()[0].digest)


def test_without_context_there_are_no_segments() -> None:
    row = cam_row(samples()[1], figures([], None), segment_length=2)
    assert row.near_probability == pytest.approx([math.exp(-0.7), math.exp(-3.0)])
    assert row.far_probability == [0.0, 0.0]
    assert (row.segments, row.segment_perplexity, row.segment_attention, row.segment_gain) == (0, [], [], [])
    assert row.far_segment == [None, None]
    assert row.cas is None and row.far_gain is None


def test_one_segment_is_not_far_from_another() -> None:
    row = cam_row(samples()[0], figures(NLL[:1], np.array([1.0, 3.0])), segment_length=2)
    assert row.segments == 1 and row.cas is None and row.far_gain is None


def test_a_perplexity_that_is_not_finite_names_its_segment() -> None:
    found = figures([np.array([1.0]), np.array([800.0]), np.array([1.0])], np.ones(3))
    with pytest.raises(UnscorableSampleError, match=r"given segment 2 alone: .* is 800\.0: its perplexity overflows"):
        cam_row(samples()[0], found, segment_length=1)
    with pytest.raises(UnscorableSampleError, match="without context: mean NLL of the response is nan"):
        cam_row(samples()[0], figures(NLL, np.ones(3), np.array([0.1, math.nan])), segment_length=2)


def test_attention_that_is_not_finite_is_unscorable() -> None:
    with pytest.raises(UnscorableSampleError, match="attention to the context is not finite"):
        cam_row(samples()[0], figures(NLL, np.array([0.1, math.nan, 0.1])), segment_length=2)
