"""Rows of an unfinished shard outlive what ended it, and are never taken for others."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.execution import row_checkpoints as partial
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.scoring.sample_table import RequestedRow
from gateau_dagster.storage import Stamp, Store
from tests.execution.shards import ASSET, SCORER, SHARD, Scorer, compute_one, write_samples


def test_a_run_that_broke_goes_on_where_it_was(store: Store) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        compute_one(store, Scorer(fail_at="s3"))
    assert store.stamp(ASSET, SHARD) is None, "half a table never counts"
    scorer = Scorer()
    result = compute_one(store, scorer)
    assert scorer.scored == ["s3", "s4"]
    assert (result.computed, result.reused) == (2, 2)
    whole = Store(str(Path(store.root) / "whole"))
    write_samples(whole, 1, 2, 3, 4)
    assert result.table.equals(compute_one(whole, Scorer()).table), "the same as without the interruption"
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}")


def test_rows_of_a_broken_run_of_another_scorer_are_not_mistaken(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute_one(store, Scorer(version=9.0, fail_at="s3"), version="v9")
    result = compute_one(store, Scorer(), version="v1")
    assert (result.computed, result.reused) == (4, 0)
    assert not store.files.exists(f"{partial.FOLDER}/{ASSET}/{SHARD}"), "the other scorer's groups are gone too"


def test_a_sample_edited_after_the_interruption_is_scored_anew(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute_one(store, Scorer(fail_at="s3"))
    write_samples(store, 1, 2, 3, 4, edited=1)
    scorer = Scorer()
    result = compute_one(store, scorer)
    assert scorer.scored == ["s1", "s3", "s4"] and result.table.height == 4


def test_a_sample_edited_and_taken_back_keeps_its_old_row(store: Store) -> None:
    compute_one(store, Scorer())
    write_samples(store, 1, 2, 3, 4, 5, edited=1)
    with pytest.raises(RuntimeError):
        compute_one(store, Scorer(fail_at="s5"))
    write_samples(store, 1, 2, 3, 4)
    scorer = Scorer()
    assert compute_one(store, scorer).reused == 4 and scorer.scored == []


def test_many_rows_are_saved_in_groups_while_the_work_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "GROUP_ROWS", 2)
    saved: list[int] = []
    folder = f"{partial.FOLDER}/{ASSET}/{SHARD}/{SCORER}"

    def watching(report: ShardReport) -> None:
        del report
        saved.append(len(store.files.names(folder)))

    compute_one(store, Scorer(), report=watching)
    assert saved == [0, 1, 1, 2]


def test_a_damaged_group_is_computed_again(store: Store) -> None:
    with pytest.raises(RuntimeError):
        compute_one(store, Scorer(fail_at="s3"))
    (name,) = store.files.names(f"{partial.FOLDER}/{ASSET}/{SHARD}/{SCORER}")
    store.files.write(f"{partial.FOLDER}/{ASSET}/{SHARD}/{SCORER}/{name}", b"half a fi")
    assert compute_one(store, Scorer()).computed == 4


def test_all_rows_that_wait_are_saved_at_once_and_none_twice(store: Store) -> None:
    """What a process does that is told to end while its main thread is elsewhere."""

    def interrupted(report: ShardReport) -> None:
        if report.scored == 3:
            partial.save_all_rows()
            partial.save_all_rows()
            assert checkpoint(store).load()["sample_id"].to_list() == ["s1", "s2", "s3"]

    compute_one(store, Scorer(), report=interrupted)
    partial.save_all_rows()
    assert checkpoint(store).load().is_empty(), "the table stands"


def test_a_lost_store_keeps_no_other_rows_from_being_saved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that wait beside it when the process is told to end, nor those of later work."""
    schema = tables.schema(tables.PERPLEXITY)
    sample = Sample(sample_id="s1", source="x", context="c", instruction="i", response="r")
    row = next(Scorer()([RequestedRow(sample=sample, assets=frozenset({ASSET}))]))[ASSET]
    assert isinstance(row, dict)
    rows = [partial.RowCheckpoints(store, ASSET, shard, "v1", schema) for shard in "234"]
    for each in rows:
        each.add(row)
    write = Store.write

    def lost(self: Store, frame: pl.DataFrame, asset: str, *args: Any) -> Stamp:
        if f"{ASSET}/3/" in asset:
            raise GateauError("data.missing", "the store is lost")
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


def test_an_interrupt_of_the_last_save_leaves_the_rows_to_what_ends_the_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Stamp:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compute_one(store, Scorer())
    partial.save_all_rows()
    assert checkpoint(store).load()["sample_id"].to_list() == ["s1", "s2", "s3", "s4"]


def checkpoint(store: Store) -> partial.RowCheckpoints:
    return partial.RowCheckpoints(store, ASSET, SHARD, SCORER, tables.schema(tables.PERPLEXITY))
