"""Score a shard in pieces side by side, and make its tables when all pieces are done.

The scorer of a piece saves rows in the store, and reports the other samples to the maker of the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_tables import ShardResult, ShardTable, TableWork, checkpoints
from gateau_dagster.execution.shard_work import (
    Effort,
    OnSample,
    OnTaken,
    Score,
    ScoringCallbacks,
    no_effort,
    read_samples,
    score_missing,
    untold,
)
from gateau_dagster.storage import Store

Texts = Callable[[Store, str], pl.DataFrame]
# How `Stamp.effort` of a shard follows from those of its pieces; other entries are equal in all.
_TOGETHER: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("samples", "tokens", "flops", "seconds"), sum),
    **dict.fromkeys(("peak_memory", "peak_memory_since_start"), max),
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Samples of a shard that are scored together. `lacking`: the assets without a row, by sample."""

    shard: str
    works: Sequence[TableWork]
    lacking: Mapping[str, frozenset[str]]

    def part(self, ids: Sequence[str]) -> "Piece":
        """Return the piece restricted to these samples."""
        return replace(self, lacking={sample_id: self.lacking[sample_id] for sample_id in ids})


@dataclass(frozen=True, kw_only=True)
class PieceResult:
    """The result of a piece by asset: the rows now in the store, the other samples, and the effort."""

    computed: Mapping[str, int]
    rejects: Mapping[str, Sequence[Reject]]
    effort: Effort = field(default_factory=dict)


def compute_piece(
    store: Store,
    piece: Piece,
    *,
    score: Score,
    on_sample: OnSample,
    effort: Callable[[], Effort] = no_effort,
    on_taken: OnTaken = untold,
    texts: Texts = read_samples,
) -> PieceResult:
    """Score a piece; however the work ends, its rows are saved. Others may save rows of the shard meanwhile.

    Args:
        store: of the project.
        piece: to be scored.
        score, on_sample, effort, on_taken: see `compute_shard`.
        texts: reads the samples of a shard.

    Raises:
        GateauError: reading or writing the store failed.
    """
    samples = texts(store, piece.shard).filter(pl.col("sample_id").is_in([*piece.lacking]))
    found = [_table(store, piece, work) for work in piece.works]
    with ExitStack() as ending:
        for table in found:
            ending.callback(table.partial.close)
        scored = score_missing(samples, found, ScoringCallbacks(score, on_sample, on_taken))
    return PieceResult(
        computed={table.work.asset: len(table.rows) for table in found},
        rejects={table.work.asset: table.rejects for table in found},
        effort=effort() if scored else {},
    )


def _table(store: Store, piece: Piece, work: TableWork) -> ShardTable:
    missing = frozenset(sample_id for sample_id, assets in piece.lacking.items() if work.asset in assets)
    nothing = pl.DataFrame(schema=tables.schema(work.columns))
    return ShardTable(work=work, partial=checkpoints(store, piece.shard, work), kept=nothing, missing=missing)


def finish_shard(
    store: Store, partition: str, works: Sequence[TableWork], results: Sequence[PieceResult]
) -> dict[str, ShardResult]:
    """Make the tables of a shard from the rows in the store; return the results by asset.

    Args:
        store: of the project.
        partition: the shard.
        works: the work on each table.
        results: of all pieces of its missing samples.

    Raises:
        GateauError: reading or writing the store failed, or reported rows are missing in it.
    """
    samples = store.read("raw_long_sft", partition, ["sample_id", "digest"])
    return {
        work.asset: _finished(store, partition, ShardTable.open(store, partition, work, samples), results)
        for work in works
    }


def _finished(store: Store, partition: str, table: ShardTable, results: Sequence[PieceResult]) -> ShardResult:
    asset = table.work.asset
    rejects = {reject.sample_id: reject for each in results for reject in each.rejects.get(asset, ())}
    lost = table.missing - rejects.keys()
    if lost:
        why = " ".join(table.partial.damaged) or "All machines have to see the same store."
        raise GateauError(
            f"{asset}, shard {partition}: {len(lost)} rows that workers saved cannot be read here, of {min(lost)} for "
            f"one. {why} What can be read is kept: run again."
        )
    table.rejects += [rejects[sample_id] for sample_id in sorted(table.missing)]
    effort = _common_effort([each.effort[asset] for each in results if asset in each.effort])
    made = table.write(store, partition, effort)
    computed = min(sum(each.computed.get(asset, 0) for each in results), table.kept.height)
    return replace(made, computed=computed, reused=table.kept.height - computed)


def _common_effort(efforts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return `Stamp.effort` of all pieces together; empty if nothing was measured."""
    if not efforts:
        return {}
    found = dict(efforts[0])
    for name, together in _TOGETHER.items():
        values = [each[name] for each in efforts if each.get(name) is not None]
        found[name] = together(values) if values else None
    return found
