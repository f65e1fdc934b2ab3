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
from tests.report.builders import config

IDS = ("alpha", "alphabet", "beta")
SHARDS = 3


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A store with three samples, and `gamma`, which was rejected."""
    given = config(long_sft={"path": "long.jsonl", "shards": SHARDS}, storage={"root": str(tmp_path)})
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
    ],
)
def test_none_or_several(state: State, name: str, message: str) -> None:
    with pytest.raises(GateauError, match=message):
        find_sample(state, name)
