"""The row of `cam` from what the passes gave, and what cannot be a row."""

import dataclasses
import math

import numpy as np
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.scoring.contextual_awareness import CamFigures, CamRow, cam_row, contextual_awareness_score

from .builders import samples

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
    # Two tokens: e^-1 - e^-0.5 and e^-2 - e^-0.1, both below nothing.
    assert row.far_gain == 0.0
    turned = cam_row(samples()[0], figures(NLL[::-1], np.array([1.0, 3.0, 5.0])), segment_length=2)
    gains = [math.exp(-0.5) - math.exp(-0.7), math.exp(-0.1) - math.exp(-2.0)]
    assert turned.far_gain == pytest.approx(sum(gains) / 2, rel=1e-6)
    assert (row.sample_id, row.digest) == ("s0", samples()[0].digest)


def test_without_context_there_are_no_segments() -> None:
    row = cam_row(samples()[1], figures([], None), segment_length=2)
    assert row.near_probability == pytest.approx([math.exp(-0.7), math.exp(-3.0)])
    assert row.far_probability == [0.0, 0.0]
    assert (row.segments, row.segment_perplexity, row.segment_attention) == (0, [], [])
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
