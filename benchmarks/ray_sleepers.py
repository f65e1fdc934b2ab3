"""Scoring on a node that only sleeps, as long as each sample is said to take: nodes import this file."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from gateau_dagster.execution.pieces import Piece, PieceResult, Texts, compute_piece
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_work import OnTaken, ShardProgress
from gateau_dagster.scoring.sample_table import Asked, Outcomes
from gateau_dagster.storage import Store


class Sleeping(dict[str, Any]):
    """A plan (`TableWork.planned`) that brings such scoring into the worker that it is sent to; seconds by sample."""

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (dict(self),)


def install(seconds: dict[str, float]) -> dict[str, Any]:
    """In the worker."""

    def score(asked: Iterable[Asked]) -> Iterator[Outcomes]:
        for each in asked:
            time.sleep(seconds[each.sample.sample_id])
            row = {"sample_id": each.sample.sample_id, "digest": each.sample.digest}
            yield dict.fromkeys(each.assets, row)

    def piece(
        self: ShardScorer, store: Store, piece: Piece, report: Report, *, on_taken: OnTaken, texts: Texts
    ) -> PieceResult:
        del self
        started = time.monotonic()

        def on_sample(progress: ShardProgress) -> None:
            spent = time.monotonic() - started
            report(ShardReport(shard=piece.shard, progress=progress, tokens=0, seconds=spent))

        return compute_piece(store, piece, score=score, on_sample=on_sample, on_taken=on_taken, texts=texts)

    ShardScorer.piece = piece  # type: ignore[method-assign]
    return {}
