"""Rows of an unfinished shard outlive what ended it, and are never taken for others."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution.shard_work import (
    ShardProgress,
)
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import ASSET, SHARD, Scorer, compute, write_samples


def test_a_run_that_broke_goes_on_where_it_was(store: Store) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        compute(store, Scorer(fail_at="s3"))
    assert store.stamp(ASSET, SHARD) is None, "half a table never counts"
    scorer, seen = Scorer(), []
    result = compute(store, scorer, seen=seen)
    assert scorer.scored == ["s3", "s4"] and seen == [3, 4]
    assert (result.computed, result.reused) == (2, 2)
    whole = Store(str(Path(store.root) / "whole"))
    write_samples(whole, 1, 2, 3, 4)
    assert result.table.equals(compute(whole, Scorer()).table), "the same as without the interruption"
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}")


def test_rows_of_a_broken_run_of_another_scorer_are_not_mistaken(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(version=9.0, fail_at="s3"), name="v9")
    result = compute(store, Scorer(), name="v1")
    assert (result.computed, result.reused) == (4, 0)
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}"), "the other scorer's groups are gone too"


def test_a_sample_edited_after_the_interruption_is_scored_anew(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s3"))
    write_samples(store, 1, 2, 3, 4, edited=1)
    scorer = Scorer()
    result = compute(store, scorer)
    assert scorer.scored == ["s1", "s3", "s4"] and result.table.height == 4


def test_a_sample_edited_and_taken_back_keeps_its_old_row(store: Store) -> None:
    compute(store, Scorer())
    write_samples(store, 1, 2, 3, 4, 5, edited=1)
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s5"))
    write_samples(store, 1, 2, 3, 4)
    scorer = Scorer()
    assert compute(store, scorer).reused == 4 and scorer.scored == []


def test_many_rows_are_saved_in_groups_while_the_work_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "GROUP_ROWS", 2)
    saved: list[int] = []
    folder = f"{partial.FOLDER}/{ASSET}/{SHARD}/v1"

    def watching(progress: ShardProgress) -> None:
        saved.append(len(store.files.names(folder)))

    compute(store, Scorer(), on_sample=watching)
    assert saved == [0, 1, 1, 2]


def test_a_damaged_group_is_computed_again(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute(store, Scorer(fail_at="s3"))
    (name,) = store.files.names(f"{partial.FOLDER}/{ASSET}/{SHARD}/v1")
    store.files.write(f"{partial.FOLDER}/{ASSET}/{SHARD}/v1/{name}", b"half a fi")
    assert compute(store, Scorer()).computed == 4


def test_all_rows_that_wait_are_saved_at_once_and_none_twice(store: Store) -> None:
    """What a process does that is told to end while its main thread is elsewhere."""

    def interrupted(progress: ShardProgress) -> None:
        if progress.finished == 3:
            partial.save_all_rows()
            partial.save_all_rows()
            assert checkpoint(store).load()["sample_id"].to_list() == ["s1", "s2", "s3"]

    compute(store, Scorer(), on_sample=interrupted)
    partial.save_all_rows()
    assert checkpoint(store).load().is_empty(), "the table stands"


def test_a_lost_store_keeps_no_other_rows_from_being_saved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that wait beside it when the process is told to end, nor those of later work."""
    schema = tables.schema(tables.PERPLEXITY)
    row = next(iter(Scorer()([Sample(sample_id="s1", source="x", context="c", instruction="i", response="r")])))
    assert isinstance(row, dict)
    rows = [partial.RowCheckpoints(store, ASSET, shard, "v1", schema) for shard in "234"]
    for each in rows:
        each.add(row)
    write = Store.write

    def lost(self: Store, frame: pl.DataFrame, asset: str, *args: Any) -> Stamp:
        if f"{ASSET}/3/" in asset:
            raise GateauError("the store is lost")
        return write(self, frame, asset, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", lost)
        with pytest.raises(GateauError, match="lost"):
            partial.save_all_rows()
        assert [each.load().height for each in rows] == [1, 0, 1]
        with pytest.raises(GateauError, match="lost"):
            rows[1].close()
        partial.save_all_rows()
    partial.save_all_rows()
    assert rows[1].load().is_empty(), "given up: its sample is computed again"


def checkpoint(store: Store) -> partial.RowCheckpoints:
    return partial.RowCheckpoints(store, ASSET, SHARD, "v1", tables.schema(tables.PERPLEXITY))
