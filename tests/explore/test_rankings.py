"""Every order of the samples, and how far methods are apart."""

import polars as pl
import pytest

from gateau_dagster.config import PRESETS
from gateau_dagster.explore.rankings import Ranking, disputed, rankings
from tests.explore.builders import method_scores
from tests.report.builders import config, inputs


def test_the_one_that_decides_comes_first_then_presets_and_methods() -> None:
    given = inputs(20)
    found = rankings(given.config, given.combined_scores, method_scores(given, "ladm", "length"))
    others = [f"gateau, preset {preset}" for preset in PRESETS if preset != given.preset]
    assert found[0].name == "gateau"
    assert {ranking.name for ranking in found} == {"gateau", *others, "ladm", "length"}
    assert given.combined_scores is not None
    decided = given.combined_scores.sort("rank")
    assert found[0].table["sample_id"].to_list() == decided["sample_id"].to_list()
    assert found[0].table["score"].to_list() == decided["score"].to_list()


def test_another_method_decides() -> None:
    given = config(selection={"method": "length"})
    found = rankings(given, inputs(20).combined_scores, method_scores(inputs(20), "ladm", "length"))
    assert found[0].name == "length"
    assert found[0].table["rank"].to_list() == [*range(1, 20)], "one of 20 has no score"


def test_a_method_without_any_score_has_no_order() -> None:
    scores = {"length": method_scores(inputs(5), "length")["length"].with_columns(score=pl.lit(None, pl.Float64))}
    assert "length" not in [ranking.name for ranking in rankings(config(), inputs(5).combined_scores, scores)]


def order(name: str, *ids: str, is_method: bool = True) -> Ranking:
    table = pl.DataFrame({"sample_id": ids, "rank": range(1, len(ids) + 1), "score": range(len(ids), 0, -1)})
    return Ranking(name=name, title="", table=table, is_method=is_method)


def test_how_far_apart_methods_are() -> None:
    spread = disputed(["a", "b", "c"], [order("one", "a", "b", "c"), order("two", "c", "b", "a")])
    assert spread is not None
    assert spread.to_list() == pytest.approx([1 / 3, 0, 1 / 3]), "shares of 1/6 and 5/6, and twice 1/2"


def test_who_disputes() -> None:
    one, preset, two = order("one", "a", "b"), order("p", "b", "a", is_method=False), order("two", "a", "b")
    assert disputed(["a", "b"], [one]) is None
    alone, methods = disputed(["a", "b"], [one, preset]), disputed(["a", "b"], [one, preset, two])
    assert alone is not None and alone.to_list() == [0.25, 0.25]
    assert methods is not None and methods.to_list() == [0, 0], "of several methods the presets do not count"
    unknown = disputed(["a", "b", "new"], [one, two])
    assert unknown is not None and unknown.to_list() == [0, 0, 0]
