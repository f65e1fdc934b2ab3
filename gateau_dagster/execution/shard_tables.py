"""Bring the tables of a shard up to date: keep valid rows, cut the missing ones into pieces, make the tables of all.

Whoever scores a piece saves its rows in the store, and reports the other samples to the maker of the tables.
"""

# How a shard is brought up to date: `Piece.whole` finds the missing rows, and workers save them as checkpoints.
# `finish_shard` reads all of them again and writes the table. So rows travel through the store and not through a queue.
# A worker that dies leaves them behind, and one on another machine needs no connection for them.
#
# What it costs: each row is written twice, once in a group and once in the table. A row is small beside the passes that
# made it.
#
# The invariant: a row counts if the digests of its sample and of its scorer are those of now. They are in the row, in
# the path of its group, or in the stamp of its table. A row of a scorer that a table's derivation fits counts as what
# is derived from it. So any mix of older tables, killed runs and parallel workers gives the same table, up to rounding.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.execution.row_checkpoints import RowCheckpoints, rows_frame
from gateau_dagster.scoring.sample_table import Derivation
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.store import DamagedTableError

Effort = Mapping[str, Mapping[str, Any]]
# How `Stamp.effort` of a shard follows from those of its pieces; other entries are equal in all.
_TOGETHER: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("samples", "tokens", "flops", "seconds"), sum),
    **dict.fromkeys(("peak_memory", "peak_memory_since_start"), max),
}


@dataclass(frozen=True, kw_only=True)
class TableWork:
    """A table's part of the work on a shard: the stamp it will get, `Asset.means`, and `SampleTable.derivation`."""

    asset: str
    columns: tuple[tables.Column, ...]
    stamp: Stamp
    memory: str
    derivation: Derivation | None = None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Samples of a shard that are scored together. `lacking`: the assets without a row, by sample."""

    shard: str
    works: Sequence[TableWork]
    lacking: Mapping[str, frozenset[str]]

    @classmethod
    def whole(cls, store: Store, shard: str, works: Sequence[TableWork]) -> "Piece":
        """Return all samples of the shard without a row in one of the tables; texts are not read."""
        samples = _digests(store, shard)
        lacking: dict[str, frozenset[str]] = {}
        for work in works:
            for sample_id in _ShardTable.open(store, shard, work, samples).missing:
                lacking[sample_id] = lacking.get(sample_id, frozenset()) | {work.asset}
        return cls(shard=shard, works=works, lacking=lacking)

    @property
    def ids(self) -> Sequence[str]:
        """Return the ids of its samples."""
        return [*self.lacking]

    def part(self, ids: Iterable[str]) -> "Piece":
        """Return the piece restricted to these samples."""
        return replace(self, lacking={sample_id: self.lacking[sample_id] for sample_id in ids})


@dataclass(frozen=True, kw_only=True)
class PieceResult:
    """The result of a piece by asset: the number of rows saved in the store, the other samples, and the effort."""

    computed: Mapping[str, int] = field(default_factory=dict)
    rejects: Mapping[str, Sequence[Reject]] = field(default_factory=dict)
    effort: Effort = field(default_factory=dict)

    def total(self, name: str) -> float:
        """Return the sum of an entry of the effort: the tables of a common pass share its tokens and seconds."""
        return sum(each[name] for each in self.effort.values())


@dataclass(frozen=True, kw_only=True)
class ShardResult:
    """The result of a shard in one table: `reused` rows were kept, `computed` ones are new."""

    table: pl.DataFrame
    rejected: pl.DataFrame
    computed: int
    reused: int
    stamp: Stamp


@dataclass(frozen=True, kw_only=True)
class _ShardTable:
    """A table of a shard: its valid rows, those to derive rows from, rejects that hold, and the ids of all others."""

    partial: RowCheckpoints
    kept: pl.DataFrame
    derivable: pl.DataFrame
    rejected: pl.DataFrame
    missing: frozenset[str]

    @classmethod
    def open(cls, store: Store, shard: str, work: TableWork, samples: pl.DataFrame) -> "_ShardTable":
        partial = checkpoints(store, shard, work)
        kept, previous = partial.load(), store.stamp(work.asset, shard)
        derivable, rejected = kept.clear(), rejected_frame([])
        # A row does not say what computed it. The stamp does, once for the whole table.
        with suppress(DamagedTableError):  # it is about to be replaced
            if previous is not None and previous.scorer == work.stamp.scorer:
                # A table of an earlier release lacks a column that is optional.
                kept = pl.concat([kept, store.read(work.asset, shard)], how="diagonal")
            elif previous is not None and work.derivation is not None and work.derivation.fits(previous, work.stamp):
                derivable = work.derivation.possible(store.read(work.asset, shard))
                # Another text may pass, and so may any text under other memory settings.
                if not previous.lacking and _data(previous) == _data(work.stamp):
                    rejected = store.read_rejected(work.asset, [shard])
        # Rows of an interrupted run and of the previous table, by the same scorer from the same content. A row may be
        # there twice: in the previous table and in a group, or from two workers. Either is right.
        kept = kept.join(samples, on=["sample_id", "digest"], how="semi").unique("sample_id", keep="first")
        derivable = derivable.join(samples, on=["sample_id", "digest"], how="semi")
        derivable = derivable.join(kept, on="sample_id", how="anti")
        have = {*kept["sample_id"], *derivable["sample_id"], *rejected["sample_id"]}
        missing = frozenset({*samples["sample_id"]} - have)
        return cls(partial=partial, kept=kept, derivable=derivable, rejected=rejected, missing=missing)


def _data(stamp: Stamp) -> Any:
    return stamp.inputs.get("upstream", {}).get("raw_long_sft")


def finish_shard(store: Store, shard: Piece, results: Sequence[PieceResult]) -> dict[str, ShardResult]:
    """Make the tables of a shard from the rows in the store; return the results by asset.

    Args:
        store: of the project.
        shard: whole, as `Piece.whole` returned it.
        results: of all its pieces.

    Raises:
        GateauError: reading or writing the store failed, or reported rows are missing in it.
    """
    samples = _digests(store, shard.shard)
    return {work.asset: _finished(store, shard.shard, work, samples, results) for work in shard.works}


def _finished(
    store: Store, shard: str, work: TableWork, samples: pl.DataFrame, results: Sequence[PieceResult]
) -> ShardResult:
    asset, table = work.asset, _ShardTable.open(store, shard, work, samples)
    # Rejects are not saved as checkpoints: they come with the result of a piece. So a killed run computes them again.
    by_id = {reject.sample_id: reject for each in results for reject in each.rejects.get(asset, ())}
    # A worker reported these rows as saved. If this machine does not see them, the table would lack rows that nobody
    # rejected.
    lost = table.missing - by_id.keys()
    if lost:
        why = " ".join(table.partial.damaged) or "All machines must see the same store."
        raise GateauError(
            "execution.rows_lost",
            f"{asset}, shard {shard}: {len(lost)} rows that workers saved cannot be read here, for example "
            f"{min(lost)}. {why} All other rows are kept: run again.",
        )
    rejects = [by_id[sample_id] for sample_id in sorted(table.missing)]
    efforts = [each.effort[asset] for each in results if asset in each.effort]
    effort = {**efforts[0]} if efforts else {}  # empty if nothing was measured
    for name, together in _TOGETHER.items() if efforts else ():
        values = [each[name] for each in efforts if each.get(name) is not None]
        effort[name] = together(values) if values else None
    # Rejects that may pass under other settings change the fingerprint of the table: see `Asset.is_current`.
    stamp = work.stamp.without([reject.sample_id for reject in rejects if reject.may_pass], work.memory)
    rows = table.kept
    if work.derivation is not None and table.derivable.height:
        rows = pl.concat([rows, work.derivation.rows(table.derivable)], how="diagonal")
    rows, rejected = rows.sort("sample_id"), pl.concat([rejected_frame(rejects), table.rejected]).sort("sample_id")
    written = store.write(rows, asset, shard, replace(stamp, effort=effort), rejected)
    # Only now that the table is written: a kill before it leaves both, and the next run takes the rows from either.
    table.partial.remove()
    computed = min(sum(each.computed.get(asset, 0) for each in results), rows.height)
    return ShardResult(table=rows, rejected=rejected, computed=computed, reused=rows.height - computed, stamp=written)


def checkpoints(store: Store, shard: str, work: TableWork) -> RowCheckpoints:
    """Return the checkpoints for the rows of an unfinished table."""
    return RowCheckpoints(store, work.asset, shard, work.stamp.scorer, tables.schema(work.columns))


def _digests(store: Store, shard: str) -> pl.DataFrame:
    return store.read("raw_long_sft", shard, ["sample_id", "digest"])


def samples_of(frame: pl.DataFrame) -> Iterator[Sample]:
    """Yield the rows of a `raw_long_sft` table as records."""
    yield from map(Sample.of_row, frame.iter_rows(named=True))


def rejected_frame(rejects: Sequence[Reject]) -> pl.DataFrame:
    """Return rejects as a table, sorted by id; secrets in reasons are masked."""
    shown = {reason: redacted(reason) for reason in {reject.reason for reject in rejects}}
    rows = [{"sample_id": reject.sample_id, "reason": shown[reject.reason]} for reject in rejects]
    return rows_frame(rows, tables.schema(tables.REJECTED)).sort("sample_id", "reason")
