"""The tables of a shard while they are brought up to date: what of each is kept, what is missing, and how it ends."""

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
    """A table's part of the work on a shard: the stamp it is to get, `Node.means`, and the effort it should take."""

    asset: str
    columns: tuple[tables.Column, ...]
    stamp: Stamp
    memory: str
    planned: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What became of a shard's samples in one table: `reused` rows were kept, `computed` ones are new."""

    table: pl.DataFrame
    rejected: pl.DataFrame
    computed: int
    reused: int
    stamp: Stamp


@dataclass(kw_only=True)
class ShardTable:
    """A table while its shard is computed, or a piece of it.

    kept: rows that hold. missing: ids of the samples to score. rows, rejects: what became of them so far.
    """

    work: TableWork
    partial: RowCheckpoints
    kept: pl.DataFrame
    missing: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    @classmethod
    def open(cls, store: Store, partition: str, work: TableWork, samples: pl.DataFrame) -> "ShardTable":
        """What is there of a table. `samples`: the shard's, with their `sample_id` and `digest`."""
        partial = checkpoints(store, partition, work)
        saved = partial.load()
        kept = reusable_rows(store, work.asset, partition, samples=samples, scorer=work.stamp.scorer, saved=saved)
        missing = samples.join(kept.select("sample_id"), on="sample_id", how="anti")["sample_id"]
        return cls(work=work, partial=partial, kept=kept, missing=frozenset(missing))

    def add(self, outcome: Row | Reject) -> None:
        """The row is among those that are saved if the work ends before it is done."""
        if isinstance(outcome, Reject):
            self.rejects.append(outcome)
        else:
            self.rows.append(outcome)
            self.partial.add(outcome)

    def write(self, store: Store, partition: str, effort: Mapping[str, Any]) -> ShardResult:
        """Makes the table, with its rejects and its stamp. `effort`: what it took, for the stamp; empty: nothing."""
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
    """Where the rows of an unfinished table are saved."""
    return RowCheckpoints(store, work.asset, partition, work.stamp.scorer, tables.schema(work.columns))


def reusable_rows(
    store: Store, asset: str, partition: str, *, samples: pl.DataFrame, scorer: str, saved: pl.DataFrame
) -> pl.DataFrame:
    """Rows of the previous table and of an interrupted run that were made by the same scorer from the same content."""
    previous = store.stamp(asset, partition)
    frames = [saved]
    if previous is not None and previous.scorer == scorer:
        with suppress(DamagedTableError):  # it is about to be replaced
            frames.append(store.read(asset, partition))
    wanted = samples.select("sample_id", "digest")
    return pl.concat(frames).join(wanted, on=["sample_id", "digest"], how="semi").unique("sample_id", keep="first")


def lacking_rows(store: Store, partition: str, works: Sequence[TableWork]) -> dict[str, frozenset[str]]:
    """By sample of the shard, the assets that lack its row, which may be none of them; texts are not read."""
    samples = store.read("raw_long_sft", partition, ["sample_id", "digest"])
    found = [ShardTable.open(store, partition, work, samples) for work in works]
    return {
        sample_id: frozenset(table.work.asset for table in found if sample_id in table.missing)
        for sample_id in samples["sample_id"].to_list()
    }


def rejected_frame(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return rejects as a table, sorted by id; no reason tells a secret."""
    shown = {reason: redacted(reason) for reason in {reject.reason for reject in rejects}}
    rows = [{"sample_id": reject.sample_id, "reason": shown[reject.reason]} for reject in rejects]
    return rows_frame(rows, tables.schema(tables.REJECTED)).sort("sample_id", "reason")
