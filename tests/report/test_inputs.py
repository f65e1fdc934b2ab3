"""The joined view of the inputs."""

import polars as pl

from .builders import config, inputs, raw, scores


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
        assert inputs(30, config=config(selection={"ground_truth": truth})).far is None


def test_an_own_source_column_in_the_scores_is_no_obstacle() -> None:
    assert inputs(30, combined_scores=scores(30).with_columns(source=pl.lit("x"))).scores["source"].n_unique() == 3
