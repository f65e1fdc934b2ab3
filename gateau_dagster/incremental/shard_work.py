"""Computes one shard of a scored table: keeps the rows that still hold, computes the others, saves as it goes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.incremental.fingerprint import fingerprint
from gateau_dagster.incremental.partial import PartialRows, rows_frame
from gateau_dagster.storage import Stamp, Store

Row = Mapping[str, Any]
Score = Callable[[Iterable[Sample]], Iterator[Row | Reject]]
OnSample = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """What became of a shard's samples: `reused` rows were kept, `computed` ones are new."""

    table: pl.DataFrame
    rejected: pl.DataFrame
    computed: int
    reused: int
    stamp: Stamp


def read_samples(store: Store, partition: str) -> pl.DataFrame:
    """The shard's validated samples."""
    return store.read("raw_long_sft", partition)


def samples_of(frame: pl.DataFrame) -> Iterator[Sample]:
    """The rows of a `raw_long_sft` table as records."""
    for row in frame.select("sample_id", "source", "context", "instruction", "response").iter_rows(named=True):
        yield Sample(**row)


def reusable_rows(
    store: Store, asset: str, partition: str, *, samples: pl.DataFrame, scorer: str, saved: pl.DataFrame
) -> pl.DataFrame:
    """Rows of the previous table and of an interrupted run that were made by the same scorer from the same content."""
    previous = store.stamp(asset, partition)
    frames = [saved]
    if previous is not None and previous.scorer == scorer:
        frames.append(store.read(asset, partition))
    wanted = samples.select("sample_id", "digest")
    return pl.concat(frames).join(wanted, on=["sample_id", "digest"], how="semi").unique("sample_id", keep="first")


def compute_shard(
    store: Store,
    asset: str,
    partition: str,
    *,
    columns: tuple[tables.Column, ...],
    stamp: Stamp,
    memory: str,
    score: Score,
    on_sample: OnSample,
) -> ShardResult:
    """Brings one shard of `asset` up to date and writes it.

    Args:
        memory: `Node.memory`.
        score: yields, in order, one row or one reject for each sample it is given; called only if there is work.
        on_sample: called after each sample with the number of samples finished so far, kept ones included.

    Raises:
        GateauError: reading or writing the store failed.
    """
    samples = read_samples(store, partition)
    schema = tables.schema(columns)
    partial = PartialRows(store, asset, partition, stamp.scorer, schema)
    kept = reusable_rows(store, asset, partition, samples=samples, scorer=stamp.scorer, saved=partial.load())
    missing = samples.join(kept.select("sample_id"), on="sample_id", how="anti")
    rows, rejects = _score(missing, score, partial, lambda done: on_sample(kept.height + done))
    table = pl.concat([kept, rows_frame(rows, schema)]).sort("sample_id")
    rejected = rejected_frame(rejects)
    complete = store.write(table, asset, partition, _as_far_as_it_fits(stamp, memory, rejects), rejected)
    partial.remove()
    return ShardResult(table=table, rejected=rejected, computed=len(rows), reused=kept.height, stamp=complete)


def _score(
    missing: pl.DataFrame, score: Score, partial: PartialRows, on_sample: OnSample
) -> tuple[list[Row], list[Reject]]:
    """Scores samples one by one; whatever ends the loop, the rows computed so far are saved."""
    rows: list[Row] = []
    rejects: list[Reject] = []
    if missing.is_empty():
        return rows, rejects
    finished = False
    try:
        for done, outcome in enumerate(score(samples_of(missing)), start=1):
            if isinstance(outcome, Reject):
                rejects.append(outcome)
            else:
                rows.append(outcome)
                partial.add(outcome)
            on_sample(done)
        finished = True
    finally:
        if not finished:
            partial.save()
    assert len(rows) + len(rejects) == missing.height, "every sample is scored or rejected"
    return rows, rejects


def _as_far_as_it_fits(stamp: Stamp, memory: str, rejects: Sequence[Reject]) -> Stamp:
    """The stamp of a table that lacks samples for want of memory: not the wanted one, and known for what it is."""
    absent = sorted(reject.sample_id for reject in rejects if reject.short_of_memory)
    if not absent:
        return stamp
    made = fingerprint({"complete": stamp.fingerprint, "memory": memory, "absent": absent})
    return replace(stamp, fingerprint=made, complete=stamp.fingerprint, short_of_memory=memory)


def rejected_frame(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Rejects as a table, sorted by id."""
    rows = [{"sample_id": reject.sample_id, "reason": reject.reason} for reject in rejects]
    return rows_frame(rows, tables.schema(tables.REJECTED)).sort("sample_id", "reason")
