"""Finding a sample by its id, or by how that begins."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import shard_keys, shard_of
from gateau_dagster.errors import GateauError
from gateau_dagster.explore.one_sample import find_sample
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.error_codes import refused
from tests.project import configured

IDS = ("alpha", "alphabet", "beta")
SHARDS = 3


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A store with three samples, and `gamma`, which was rejected."""
    given = configured(long_sft={"path": "long.jsonl", "shards": SHARDS}, storage={"root": str(tmp_path)})
    found = State(config=given.model_copy(update={"folder": tmp_path}))
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
        (
            "alphabet",
            2,
            r"^The tables are from another value of long_sft\.shards than 2: set it back, or run `gateau run",
        ),
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
        find_sample(State(config=state.config.model_copy(update={"long_sft": other})), name)


def test_what_is_still_in_its_shard_is_shown(state: State) -> None:
    fewer = state.config.long_sft.model_copy(update={"shards": 2})
    assert shard_of("gamma", 2) == shard_of("gamma", SHARDS) == 0
    with refused("show.sample"):
        find_sample(State(config=state.config.model_copy(update={"long_sft": fewer})), "gamma")
