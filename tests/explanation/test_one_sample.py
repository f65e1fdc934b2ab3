"""Finding a sample by its id, or by how that begins, and its place in every ranking."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.config import PRESETS
from gateau_dagster.data.sample import shard_keys, shard_of
from gateau_dagster.errors import GateauError
from gateau_dagster.explanation.one_sample import Ranking, disputed, find_sample, rankings
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.features.report.builders import inputs
from tests.features.report.viewer.builders import method_scores
from tests.kit.error_codes import refused
from tests.kit.project import configured

IDS = ("alpha", "alphabet", "beta")
SHARDS = 3


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A store with three samples, and `gamma`, which was rejected."""
    given = configured(long_sft={"path": "long.jsonl", "shards": SHARDS}, storage={"root": str(tmp_path)})
    found = state_of(config=given.model_copy(update={"folder": tmp_path}))
    texts = dict.fromkeys(tables.schema(tables.RAW_LONG_SFT).names(), "")
    rejected = pl.DataFrame({"sample_id": ["gamma"], "reason": ["the response is empty"]})
    for place, shard in enumerate(shard_keys(SHARDS)):
        rows = [
            {**texts, "sample_id": name, "context": f"of {name}"} for name in IDS if shard_of(name, SHARDS) == place
        ]
        table = pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT))
        here = rejected if shard_of("gamma", SHARDS) == place else None
        found.store.write(table, "raw_long_sft", shard, Stamp(fingerprint="f"), here)
    return found


@pytest.mark.parametrize(("name", "found"), [("alpha", "alpha"), ("alphab", "alphabet"), ("b", "beta")])
def test_an_id_or_its_beginning(state: State, name: str, found: str) -> None:
    sample = find_sample(state, name)
    assert (sample.sample_id, sample.context) == (found, f"of {found}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alp", "2 samples .*alpha, alphabet"),
        ("eta", "no samples"),
        ("", "no samples"),
        ("gamma", "the response is empty"),
        ("a\udcff", r"no samples .* begins with 'a\\udcff'"),
    ],
)
def test_none_or_several(state: State, name: str, message: str) -> None:
    with refused("show.sample", message):
        find_sample(state, name)


@pytest.mark.parametrize(
    ("name", "shards", "message"),
    [
        ("alphabet", 2, "^The tables are from another value of long_sft.shards than 2: set it back"),
        ("alphab", 2, "another value of long_sft.shards than 2"),
        ("beta", 2, "another value of long_sft.shards than 2"),
        ("nobody", 2, "another value of long_sft.shards than 2"),
        ("nobody", 1, "no samples .* another long_sft.shards than 1, too: .* run `gateau run"),
        ("beta", 4, r"/3\.parquet does not exist yet\. Run `gateau run"),
        ("beta", 16, r"\.parquet does not exist yet\. Run `gateau run"),
    ],
)
def test_tables_of_another_number_of_shards_are_out_of_date(state: State, name: str, shards: int, message: str) -> None:
    other = state.config.long_sft.model_copy(update={"shards": shards})
    with pytest.raises(GateauError, match=message):
        find_sample(state_of(config=state.config.model_copy(update={"long_sft": other})), name)


def test_what_is_still_in_its_shard_is_shown(state: State) -> None:
    fewer = state.config.long_sft.model_copy(update={"shards": 2})
    assert shard_of("gamma", 2) == shard_of("gamma", SHARDS) == 0
    with refused("show.sample"):
        find_sample(state_of(config=state.config.model_copy(update={"long_sft": fewer})), "gamma")


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
    given = configured(selection={"method": "length"})
    found = rankings(given, inputs(20).combined_scores, method_scores(inputs(20), "ladm", "length"))
    assert found[0].name == "length"
    assert found[0].table["rank"].to_list() == [*range(1, 20)], "one of 20 has no score"


def test_a_method_without_any_score_has_no_order() -> None:
    scores = {"length": method_scores(inputs(5), "length")["length"].with_columns(score=pl.lit(None, pl.Float64))}
    assert "length" not in [ranking.name for ranking in rankings(configured(), inputs(5).combined_scores, scores)]


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
