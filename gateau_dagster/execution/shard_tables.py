"""Bring the tables of a shard up to date: the kept rows, the missing ones, and the result."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import redacted
from gateau_dagster.execution.row_checkpoints import RowCheckpoints, rows_frame
from gateau_dagster.scoring.sample_table import Row
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.store import DamagedTableError


@dataclass(frozen=True, kw_only=True)
class TableWork:
    """A table's part of the work on a shard: the stamp it will get, `Asset.means`, and the planned effort."""

    asset: str
    columns: tuple[tables.Column, ...]
    stamp: Stamp
    memory: str
    planned: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """The result of a shard in one table: `reused` rows were kept, `computed` ones are new."""

    table: pl.DataFrame
    rejected: pl.DataFrame
    computed: int
    reused: int
    stamp: Stamp


@dataclass(kw_only=True)
class ShardTable:
    """A table while its shard, or a piece of it, is computed.

    kept: valid rows. missing: ids of the samples to score. rows, rejects: their outcomes so far.
    """

    work: TableWork
    partial: RowCheckpoints
    kept: pl.DataFrame
    missing: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @classmethod
    def open(cls, store: Store, partition: str, work: TableWork, samples: pl.DataFrame) -> "ShardTable":
        """Open a table with its kept rows. `samples`: of the shard, with their `sample_id` and `digest`."""
        partial = checkpoints(store, partition, work)
        saved = partial.load()
        kept = reusable_rows(store, work.asset, partition, samples=samples, scorer=work.stamp.scorer, saved=saved)
        missing = samples.join(kept.select("sample_id"), on="sample_id", how="anti")["sample_id"]
        return cls(work=work, partial=partial, kept=kept, missing=frozenset(missing))

    def add(self, outcome: Row | Reject) -> None:
        """Add an outcome; a row is saved even if the work ends before it is done."""
        if isinstance(outcome, Reject):
            self.rejects.append(outcome)
        else:
            self.rows.append(outcome)
            self.partial.add(outcome)

    def write(self, store: Store, partition: str, effort: Mapping[str, Any]) -> ShardResult:
        """Write the table, with its rejects and its stamp. `effort`: measured, for the stamp; empty if nothing was."""
        assert len(self.rows) + len(self.rejects) == len(self.missing), "every sample is scored or rejected"
        table = pl.concat([self.kept, rows_frame(self.rows, self.kept.schema)]).sort("sample_id")
        rejected = rejected_frame(self.rejects)
        planned = {"planned": dict(self.work.planned)} if effort and self.work.planned else {}
        absent = [reject.sample_id for reject in self.rejects if reject.may_pass]
        stamp = self.work.stamp.without(absent, self.work.memory)
        stamp = replace(stamp, effort={**effort, **planned})
        complete = store.write(table, self.work.asset, partition, stamp, rejected)
        self.partial.remove()
        return ShardResult(
            table=table, rejected=rejected, computed=len(self.rows), reused=self.kept.height, stamp=complete
        )


def checkpoints(store: Store, partition: str, work: TableWork) -> RowCheckpoints:
    """Return the checkpoints for the rows of an unfinished table."""
    return RowCheckpoints(store, work.asset, partition, work.stamp.scorer, tables.schema(work.columns))


def reusable_rows(
    store: Store, asset: str, partition: str, *, samples: pl.DataFrame, scorer: str, saved: pl.DataFrame
) -> pl.DataFrame:
    """Return rows of the previous table and of an interrupted run, made by the same scorer from the same content."""
    previous = store.stamp(asset, partition)
    frames = [saved]
    if previous is not None and previous.scorer == scorer:
        with suppress(DamagedTableError):  # it is about to be replaced
            frames.append(store.read(asset, partition))
    wanted = samples.select("sample_id", "digest")
    return pl.concat(frames).join(wanted, on=["sample_id", "digest"], how="semi").unique("sample_id", keep="first")


def lacking_rows(store: Store, partition: str, works: Sequence[TableWork]) -> dict[str, frozenset[str]]:
    """Return the assets without a row for each sample of the shard, maybe none; texts are not read."""
    samples = store.read("raw_long_sft", partition, ["sample_id", "digest"])
    found = [ShardTable.open(store, partition, work, samples) for work in works]
    return {
        sample_id: frozenset(table.work.asset for table in found if sample_id in table.missing)
        for sample_id in samples["sample_id"].to_list()
    }


def rejected_frame(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return rejects as a table, sorted by id; secrets in reasons are masked."""
    shown = {reason: redacted(reason) for reason in {reject.reason for reject in rejects}}
    rows = [{"sample_id": reject.sample_id, "reason": shown[reject.reason]} for reject in rejects]
    return rows_frame(rows, tables.schema(tables.REJECTED)).sort("sample_id", "reason")
