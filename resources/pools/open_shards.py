"""Track the shards whose pieces are being scored, and write their tables once all pieces are done."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from gateau_dagster.execution.pieces import PieceResult, finish_shard
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_tables import ShardResult, TableWork, lacking_rows
from gateau_dagster.execution.shard_work import ShardProgress
from gateau_dagster.storage import Store
from resources.pools.piece_queue import Lacking, PieceJob

# Tables are written beside the queue: with many workers, shards finish in quick succession.
_WRITERS = 4
Finished = tuple[str, dict[str, ShardResult]]


@dataclass(kw_only=True)
class _Shard:
    """The state of a shard. kept, missing: counts of samples. scored, tokens, seconds: of finished pieces.

    now: reports of running pieces, by worker.
    """

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
    """The open shards of one step. `report`: receives their progress, as in `ScoringWorkers.results`."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store, self._report = store, report
        self._shards: dict[str, _Shard] = {}
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="finish-shard")
        self._writing: dict[Future[dict[str, ShardResult]], str] = {}

    def open(self, shard: str, works: Sequence[TableWork]) -> Lacking:
        """Open a shard, and return the assets without a row for each sample."""
        lacking = lacking_rows(self._store, shard, works)
        missing = sum(map(bool, lacking.values()))
        found = self._shards[shard] = _Shard(works=works, kept=len(lacking) - missing, missing=missing)
        self._finish_if_done(shard, found)
        return lacking

    def advance(self, worker: int, report: ShardReport) -> None:
        """Record a worker's progress with its piece."""
        if (found := self._shards.get(report.shard)) is not None:
            found.now[worker] = report
            self._report(found.report(report.shard))

    def lose(self, worker: int, job: PieceJob) -> None:
        """Discard the progress of a lost worker's piece."""
        found = self._shards[job.piece.shard]
        found.now.pop(worker, None)
        self._report(found.report(job.piece.shard))

    def add(self, worker: int | None, job: PieceJob, result: PieceResult, report: ShardReport | None = None) -> None:
        """Add a finished piece; `worker` is None for one that was given up. `report`: of the piece, at its end."""
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
        """Yield the shards whose tables are written; wait up to `patience` seconds for the first one.

        Raises:
            GateauError, TransientError: for the reasons of `finish_shard`.
        """
        for done in wait(self._writing, timeout=patience, return_when=FIRST_COMPLETED).done:
            shard = self._writing.pop(done)
            del self._shards[shard]
            yield shard, done.result()

    def __bool__(self) -> bool:
        """Return whether any shard is unfinished."""
        return bool(self._shards)

    def close(self) -> None:
        """Wait for the tables that are being written."""
        self._writers.shutdown(cancel_futures=True)
