"""Run a scoring worker: a process that loads a model once and scores the shards that it is given.

It communicates with the step over one pipe. It receives a `Job`, sends `Taken` and `ShardReport`s while it scores the
shard, then `Finished`, or `Failed` once. It saves rows and writes tables itself, like a step without workers. It ends
with its pipe, and with the step, however that ends.
"""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from gateau_dagster.errors import redact_exception, redact_output
from gateau_dagster.execution.interruption import worker_ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult
from gateau_dagster.storage import Store
from resources.pools.failed import Failed, portable
from resources.pools.pool import ScoringTask
from resources.pools.shard_queue import Job

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel

_SECONDS_BETWEEN_REPORTS = 0.2
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The next begun sample, if any, and the number of finished ones. A worker dies over one of those between."""

    sample_id: str | None
    finished: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A shard whose tables are written."""

    shard: str
    results: dict[str, ShardResult]


def run_worker(task: ScoringTask, device: str, connection: Connection) -> None:
    """Run a worker from start to end."""
    redact_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the step too, which then ends its workers
    _end_with_parent()
    with worker_ends_in_order(save_all_rows):
        _work(task, device, connection)


def _work(task: ScoringTask, device: str, connection: Connection) -> None:
    try:
        store = Store(task.config.located_root)
        scorer = ShardScorer(task.config, task.model, lambda: _load(task, device))
        while (job := _next_job(connection)) is not None:
            told = _Told(connection)
            results = scorer.compute(
                store, job.shard, job.works, told.report, on_taken=told.taken, suspects=job.suspects
            )
            connection.send(Finished(shard=job.shard, results=results))
    except Exception as raised:
        error = redact_exception(raised)
        traceback.print_exception(error)  # into the step's log; an exception crosses the pipe without its traceback
        connection.send(Failed(error=portable(error)))


def _next_job(connection: Connection) -> Job | None:
    """Return the next job, or None if the step has closed its end."""
    try:
        return connection.recv()
    except EOFError:
        return None


def _load(task: ScoringTask, device: str) -> "LoadedModel":
    import torch

    from gateau_dagster.models.encoders import load_for_task

    torch.set_num_threads(max(1, torch.get_num_threads() // len(task.devices)))
    config = task.config
    assert task.section is not None, "this worker is on the machine of the step"
    return load_for_task(task.section, dtype=config.scoring.dtype, device=device, folder=config.folder)


def _end_with_parent() -> None:
    """End this process as soon as the step's process is gone, even by a kill without notice."""
    parent, pid = multiprocessing.parent_process(), os.getppid()
    assert parent is not None

    def watch() -> None:
        while parent.is_alive() and os.getppid() == pid:
            parent.join(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


class _Told:
    """Reports on one shard to the step. Samples are begun in a thread, and finished in their order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._taken = self._finished = 0
        self._said = float("-inf")

    def taken(self, sample_id: str) -> None:
        """Report that a sample is about to begin."""
        with self._lock:
            self._taken += 1
            self._connection.send(Taken(sample_id=sample_id, finished=self._finished))

    def report(self, shard: ShardReport) -> None:
        """Report a finished sample if none is in hand, and at intervals."""
        now = time.monotonic()
        with self._lock:
            self._finished = shard.progress.scored
            if self._finished == self._taken:
                self._connection.send(Taken(sample_id=None, finished=self._finished))
            if now - self._said >= _SECONDS_BETWEEN_REPORTS or shard.progress.share == 1:
                self._said = now
                self._connection.send(shard)
