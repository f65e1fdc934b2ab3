"""Presets side by side, against plain loops."""

import itertools
import math

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config import PRESETS
from gateau_dagster.features.report.inputs import PresetComparison, ReportInputs, compare
from tests.features.report.builders import KINDS, inputs, raw, scores
from tests.kit.project import configured


def compared(given: ReportInputs) -> PresetComparison:
    found = compare(given)
    assert found is not None
    return found


def test_auroc_counts_ordered_pairs() -> None:
    given = inputs(30)
    frame = given.scores
    for facts in compared(given).presets:
        values = list(zip(frame[f"score_{facts.name}"], frame["source"], strict=True))
        far = [value for value, source in values if source == "far"]
        rest = [value for value, source in values if source != "far"]
        right = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(far, rest))
        assert facts.auroc == pytest.approx(right / (len(far) * len(rest)))


def test_samples_that_the_pair_cannot_score_are_the_last() -> None:
    given = inputs(30, raw=raw(34).lazy())
    scored = dict(given.scores.select("sample_id", "score_robust").iter_rows())
    rows = [(scored.get(name, -9.0), source == "far") for name, source in raw(34).select("sample_id", "source").rows()]
    pairs = [(one, two) for (one, far), (two, other) in itertools.product(rows, rows) if far and not other]
    right = sum(1.0 if one > two else 0.5 if one == two else 0.0 for one, two in pairs)
    assert compared(given).auroc["robust"] == pytest.approx(right / len(pairs))


def test_overlap_is_the_share_of_common_samples() -> None:
    given = inputs(30)
    comparison = compared(given)
    assert comparison.count == 3
    for i, j in itertools.product(range(len(PRESETS)), repeat=2):
        first, second = (set(given.scores.sort(f"rank_{PRESETS[k]}")["sample_id"].to_list()[:3]) for k in (i, j))
        assert comparison.overlap[i, j] == len(first & second) / 3


def test_what_is_reserved_is_among_no_preset_s_first() -> None:
    reserved = inputs(30).scores.sort("rank")["sample_id"].to_list()[1:30:3]
    given = inputs(30, reserved=reserved)
    comparison, frame = compared(given), given.scores
    for i, j in itertools.product(range(len(PRESETS)), repeat=2):
        orders = (frame.sort(f"rank_{PRESETS[k]}")["sample_id"].to_list() for k in (i, j))
        first, second = ({*[name for name in order if name not in reserved][:3]} for order in orders)
        assert comparison.overlap[i, j] == len(first & second) / 3
    for facts in comparison.presets:
        best = [
            row for row in frame.sort(f"rank_{facts.name}").iter_rows(named=True) if row["sample_id"] not in reserved
        ]
        assert facts.precision == pytest.approx(sum(row["far"] for row in best[:3]) / 3)
        assert facts.auroc == next(each.auroc for each in compared(inputs(30)).presets if each.name == facts.name)


def test_spearman_is_one_with_itself_and_symmetric_and_undefined_for_equal_scores() -> None:
    matrix = compared(inputs(30)).spearman
    np.testing.assert_allclose(np.diag(matrix), 1.0)
    np.testing.assert_allclose(matrix, matrix.T)
    assert np.isnan(compared(inputs(30, combined_scores=scores(30, equal=True))).spearman).all()


def test_shares_of_far_samples() -> None:
    comparison = compared(inputs(31))
    assert comparison.far_share == sum(KINDS[i % 3] == "far" for i in range(31)) / 31
    assert comparison.far_selected == 1.0
    assert comparison.auroc["robust"] == 1.0
    unknown = compared(inputs(30, config=configured()))
    assert (unknown.auroc, unknown.far_share, unknown.far_selected) == ({}, None, None)
    nothing = compared(inputs(30, selected_subset=inputs(30).selected_subset.clear())).far_selected
    assert nothing is not None and math.isnan(nothing)


def test_samples_without_cas_are_counted() -> None:
    facts = compared(inputs(30, combined_scores=scores(30, segments=1))).presets
    assert {one.without_cas for one in facts} == {30}
    assert all(one.check.degenerate for one in facts)


def test_scores_keep_their_order_and_gain_source_and_marks() -> None:
    given = inputs(30, raw=raw(30).reverse())
    assert given.combined_scores is not None
    assert given.scores["sample_id"].to_list() == given.combined_scores["sample_id"].to_list()
    by_id = dict(given.scores.select("sample_id", "source").iter_rows())
    assert by_id["s000002"] == "far"
    assert given.scores.filter("far")["source"].unique().to_list() == ["far"]
    assert given.scores.filter("selected")["sample_id"].to_list() == given.selected_subset["sample_id"].to_list()


def test_a_sample_that_is_gone_from_raw_has_an_unknown_source() -> None:
    given = inputs(30, raw=raw(30).filter(pl.col("sample_id") != "s000002"))
    assert given.scores.filter(sample_id="s000002").select("source", "far").row(0) == ("(unknown)", False)
    assert given.given == 29


def test_far_needs_both_kinds() -> None:
    assert inputs(30).far is not None
    for truth in ([], ["nothing"], ["far", "near", "no_context"]):
        assert inputs(30, config=configured(selection={"ground_truth": truth})).far is None


def test_an_own_source_column_in_the_scores_is_no_obstacle() -> None:
    assert inputs(30, combined_scores=scores(30).with_columns(source=pl.lit("x"))).scores["source"].n_unique() == 3
