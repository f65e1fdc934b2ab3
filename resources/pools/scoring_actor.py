"""Score pieces of shards in a worker on a node of a Ray cluster."""

from dataclasses import dataclass, replace

import polars as pl

from gateau_dagster.execution.pieces import Piece, PieceResult
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_work import read_samples
from gateau_dagster.storage import Store
from resources.pools.node_actor import Look, NodeActor, NodeTask


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The result of a piece whose rows are in the store. report: at its last sample."""

    result: PieceResult
    report: ShardReport | None


class ScoringActor(NodeActor):
    """A worker that scores. `NodeTask.more` is the model's name in the configuration."""

    def __init__(self, task: NodeTask) -> None:
        super().__init__(task)
        self._store = Store(task.config.located_root)
        self._texts: tuple[str, pl.DataFrame] | None = None
        self._taken: list[str] = []

    def _done(self, piece: Piece) -> Scored:
        self._taken = []
        scorer = ShardScorer(self._task.config, self._task.more, self._model)
        result = scorer.piece(self._store, piece, self._advance, on_taken=self._take, texts=self._samples)
        return Scored(result=result, report=self._look.report)

    def _samples(self, store: Store, shard: str) -> pl.DataFrame:
        """Return the shard's samples; the last shard is kept, since its pieces follow each other."""
        if self._texts is None or self._texts[0] != shard:
            self._texts = None
            self._texts = shard, read_samples(store, shard)
        return self._texts[1]

    def _take(self, sample_id: str) -> None:
        """Record a begun sample; samples are begun in a thread, and finished in their order."""
        with self._lock:
            self._taken.append(sample_id)
            self._look = self._looked(self._look.report)

    def _advance(self, report: ShardReport) -> None:
        with self._lock:
            self._look = self._looked(report)

    def _looked(self, report: ShardReport | None) -> Look:
        finished = 0 if report is None else report.progress.scored
        return replace(self._look, in_hand=frozenset(self._taken[finished:]), report=report)
