"""The shards whose pieces are being scored: how far they are, and their tables once all pieces are done."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from gateau_dagster.execution.pieces import PieceResult, finish_shard
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_tables import ShardResult, TableWork, lacking_rows
from gateau_dagster.execution.shard_work import ShardProgress
from gateau_dagster.storage import Store
from resources.pools.piece_queue import Lacking, PieceJob

# Tables are written beside the queue: with many workers one shard after the other is done.
_WRITERS = 4
Finished = tuple[str, dict[str, ShardResult]]


@dataclass(kw_only=True)
class _Shard:
    """kept, missing: samples. cost: of what is done; tokens, seconds: that it took. now: reports of pieces in work."""

    works: Sequence[TableWork]
    kept: int
    missing: int
    results: list[PieceResult] = field(default_factory=list)
    scored: int = 0
    tokens: int = 0
    seconds: float = 0.0
    now: dict[int, ShardReport] = field(default_factory=dict)

    def report(self, shard: str) -> ShardReport:
        working = self.now.values()
        scored = min(self.missing, self.scored + sum(each.progress.scored for each in working))
        return ShardReport(
            shard=shard,
            progress=ShardProgress(
                finished=self.kept + scored, scored=scored, share=scored / self.missing if self.missing else 1.0
            ),
            tokens=self.tokens + sum(each.tokens for each in working),
            seconds=self.seconds + sum(each.seconds for each in working),
        )


class OpenShards:
    """Of one step. `report`: see `ScoringWorkers.results`."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report = store, report
        self._shards: dict[str, _Shard] = {}
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="finish-shard")
        self._writing: dict[Future[dict[str, ShardResult]], str] = {}

    def open(self, shard: str, works: Sequence[TableWork]) -> Lacking:
        """By sample, the assets that lack its row."""
        lacking = lacking_rows(self._store, shard, works)
        missing = sum(map(bool, lacking.values()))
        found = self._shards[shard] = _Shard(works=works, kept=len(lacking) - missing, missing=missing)
        self._finish_if_done(shard, found)
        return lacking

    def advance(self, worker: int, report: ShardReport) -> None:
        """A worker is so far with its piece."""
        if (found := self._shards.get(report.shard)) is not None:
            found.now[worker] = report
            self._report(found.report(report.shard))

    def lose(self, worker: int, job: PieceJob) -> None:
        """What a worker had done of its piece does not count."""
        found = self._shards[job.piece.shard]
        found.now.pop(worker, None)
        self._report(found.report(job.piece.shard))

    def add(self, worker: int | None, job: PieceJob, result: PieceResult, report: ShardReport | None = None) -> None:
        """A piece is done, by a worker unless it was given up. `report`: of the piece, at its end."""
        found = self._shards[job.piece.shard]
        if worker is not None:
            found.now.pop(worker, None)
        found.results.append(result)
        found.scored += len(job.piece.lacking)
        if report is not None:
            found.tokens += report.tokens
            found.seconds += report.seconds
        self._report(found.report(job.piece.shard))
        self._finish_if_done(job.piece.shard, found)

    def _finish_if_done(self, shard: str, found: _Shard) -> None:
        if found.scored == found.missing:
            done = self._writers.submit(finish_shard, self._store, shard, found.works, found.results)
            self._writing[done] = shard

    def finished(self, *, patience: float = 0.0) -> Iterator[Finished]:
        """Those whose tables are written now; waits so many seconds for a first one.

        Raises:
            GateauError, TransientError: see `finish_shard`.
        """
        for done in wait(self._writing, timeout=patience, return_when=FIRST_COMPLETED).done:
            shard = self._writing.pop(done)
            del self._shards[shard]
            yield shard, done.result()

    def __bool__(self) -> bool:
        """Whether any is not finished."""
        return bool(self._shards)

    def close(self) -> None:
        """Waits for the tables that are being written."""
        self._writers.shutdown(cancel_futures=True)
