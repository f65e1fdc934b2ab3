"""Scoring in a worker without a model, where some samples kill the worker; imports little, since each worker does."""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gateau_dagster.execution.pieces import Piece, PieceResult, Texts, compute_piece
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import OnTaken, ShardProgress, Suspects, compute_shard
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow
from gateau_dagster.storage import Store

BATCH = 4


class Deadly(dict[str, Any]):
    """A plan that brings such scoring into the worker that it is sent to.

    kills: ids of samples that kill whoever scores them, `after` so many seconds. log: file with a line for each batch.
    seconds: that each sample takes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (dict(self),)


def install(plan: dict[str, Any]) -> dict[str, Any]:
    """In the worker."""

    def score(asked: Iterable[RequestedRow]) -> Iterator[Outcomes]:
        waiting = iter(asked)
        while batch := [*islice(waiting, BATCH)]:
            ids = [each.sample.sample_id for each in batch]
            with Path(plan["log"]).open("a") as log:
                log.write(" ".join(ids) + "\n")
            if {*ids} & {*plan["kills"]}:
                time.sleep(plan.get("after", 0))
                os.kill(os.getpid(), signal.SIGKILL)
            for each in batch:
                time.sleep(plan.get("seconds", 0))
                yield {
                    asset: {"sample_id": each.sample.sample_id, "digest": each.sample.digest} for asset in each.assets
                }

    def compute(
        self: ShardScorer,
        store: Store,
        shard: str,
        works: Sequence[TableWork],
        report: Report,
        *,
        on_taken: OnTaken,
        suspects: Suspects,
    ) -> dict[str, ShardResult]:
        del self

        def on_sample(progress: ShardProgress) -> None:
            report(ShardReport(shard=shard, progress=progress, tokens=0, seconds=0.0))

        return compute_shard(
            store, shard, works, score=score, on_sample=on_sample, on_taken=on_taken, suspects=suspects
        )

    def score_piece(
        self: ShardScorer, store: Store, piece: Piece, report: Report, *, on_taken: OnTaken, texts: Texts
    ) -> PieceResult:
        del self

        def on_sample(progress: ShardProgress) -> None:
            report(ShardReport(shard=piece.shard, progress=progress, tokens=0, seconds=progress.scored / 1000))

        return compute_piece(store, piece, score=score, on_sample=on_sample, on_taken=on_taken, texts=texts)

    ShardScorer.compute = compute  # type: ignore[method-assign]
    ShardScorer.piece = score_piece  # type: ignore[method-assign]
    return {}
