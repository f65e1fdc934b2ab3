"""Check which samples a benchmark reads from the store."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl

from gateau_dagster.assets.benchmarks import materials
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp, Store
from tests.project import sample


def test_shards_with_and_without_conversations_are_read_together(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    rows = [{**sample(number), "sample_id": f"s{number}", "digest": ""} for number in range(3)]
    talk = '{"messages": []}'
    for shard, frame in {
        "0": pl.DataFrame(rows[:2]),
        "1": pl.DataFrame(rows[2:]).with_columns(conversation=pl.lit(talk)),
    }.items():
        store.write(frame, "raw_long_sft", shard, Stamp(fingerprint=shard))
    asset = SimpleNamespace(reads=())
    state: Any = SimpleNamespace(store=store, shards=["0", "1"], config=None, asset=lambda _: asset)
    found = materials(state, "evaluation/heldout", state, silent).samples(["s0", "s2"])
    assert [(each.sample_id, each.conversation) for each in found] == [("s0", ""), ("s2", talk)]
