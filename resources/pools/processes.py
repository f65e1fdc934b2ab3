"""Score in several processes of this machine: one per device, each with its own model, served from one queue."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError, redact_exception, redact_output
from gateau_dagster.execution.interruption import worker_ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import ShardProgress, Suspects
from gateau_dagster.storage import Store
from resources.pools.failed import Failed, portable
from resources.pools.pool import ScoringTask, Warn

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel
from collections.abc import Iterator
from multiprocessing.connection import wait
from types import TracebackType

from resources.pools.pool import Pool, unknown_costs

_MOST = 3
_GIVEN_UP = (
    f"{_MOST} scoring workers died over this sample, often killed by the system for lack of memory. It is "
    "tried again when scoring.device, scoring.device_map or scoring.workers is another one"
)
_NOTHING_YET = ShardProgress(finished=0, scored=0, share=0.0)


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """A shard to score. `suspects`: those of its samples over which workers died."""

    shard: str
    works: Sequence[TableWork]
    suspects: Suspects = field(default_factory=Suspects)


class ShardQueue:
    """The shards in their order.

    One lost worker does not end the step, nor does a sample that kills workers; a shard too large for any worker does.
    """

    def __init__(self, shards: Mapping[str, Sequence[TableWork]], report: Report, warn: Warn) -> None:
        self._waiting = deque(ShardJob(shard=shard, works=works) for shard, works in shards.items())
        # By shard, the samples in hand of each lost worker.
        self._lost: dict[str, list[frozenset[str]]] = {shard: [] for shard in shards}
        self._report, self._warn = report, warn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> ShardJob:
        """Return the next shard."""
        return self._waiting.popleft()

    def give_back(self, job: ShardJob, loss: str, in_hand: frozenset[str] = frozenset()) -> None:
        """Put the shard of a lost worker first; its progress restarts from the saved rows.

        The samples in hand are scored one by one from now on. One that has lost three workers is rejected.

        The shard is not put last: if every shard is too large, the step should end after three workers.

        Args:
            job: the shard that the worker was scoring.
            loss: which worker was lost, and how.
            in_hand: the samples that it was scoring, as far as it had reported.

        Raises:
            GateauError: the shard has lost as many workers as it may, and no sample accounts for it.
        """
        lost = self._lost[job.shard]
        lost.append(in_hand)
        given_up = [sample for sample, times in Counter(s for each in lost for s in each).items() if times == _MOST]
        if given_up:
            self._lost[job.shard] = [each for each in lost if not each & {*given_up}]
            then = f"the last of {_MOST} over the sample {', '.join(given_up)}, which is rejected"
        elif len(lost) == _MOST:
            raise GateauError(
                f"{loss} while it scored shard {job.shard}, the last of {_MOST} workers that this shard "
                "has lost; often the system kills them for lack of memory. What was computed is kept: run again with "
                "fewer scoring.workers or a smaller scoring.batch_tokens."
            )
        else:
            then = f"loss {len(lost)} of {_MOST}"
        self._warn(f"{loss} while it scored shard {job.shard}; another worker takes the shard ({then})")
        self._report(ShardReport(shard=job.shard, progress=_NOTHING_YET, tokens=0, seconds=0.0))
        suspects = Suspects(
            alone=job.suspects.alone | in_hand, given_up={**job.suspects.given_up, **dict.fromkeys(given_up, _GIVEN_UP)}
        )
        self._waiting.appendleft(replace(job, suspects=suspects))


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


def _next_job(connection: Connection) -> ShardJob | None:
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


# Time for a stopped worker to save the rows of its shard.
_GRACE_SECONDS = 20.0


class ProcessWorkers:
    """Scoring workers in processes. A worker starts if work waits and a device is free, also to replace a lost one.

    There is one pipe per worker and no common queue: a lock held by a killed worker would block the others forever.
    """

    def __init__(self, task: ScoringTask, warn: Warn) -> None:
        # Costs stay in the step, since they cannot be pickled; shards are not cut here, so nothing needs them.
        self._task, self._warn = replace(task, costs=unknown_costs), warn
        self._free_devices = deque(task.devices)
        self._workers: list[_Worker] = []

    def __enter__(self) -> "ProcessWorkers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers:
            worker.end(deadline)

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Implement ScoringWorkers.results."""
        queue = ShardQueue(shards, report, self._warn)
        self._hand_out(queue)
        while any(worker.job for worker in self._workers):
            for worker in self._ready():
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._lose(worker, queue)
                    self._hand_out(queue)
                    continue
                if isinstance(message, ShardReport):
                    report(message)
                elif isinstance(message, Taken):
                    worker.take(message)
                elif isinstance(message, Failed):
                    raise message.error
                else:
                    worker.job = None
                    # The next shard comes first, since the caller's work on this one takes time.
                    self._hand_out(queue)
                    yield message.shard, message.results

    def _ready(self) -> list["_Worker"]:
        """Return the workers with a message or a closed pipe, idle ones too, so that no dead one gets a shard."""
        said = wait([worker.connection for worker in self._workers])
        return [worker for worker in self._workers if worker.connection in said]

    def _hand_out(self, queue: ShardQueue) -> None:
        while queue and (worker := self._idle_worker()) is not None:
            try:
                worker.give(queue.take())
            except OSError:
                self._lose(worker, queue)

    def _lose(self, worker: "_Worker", queue: ShardQueue) -> None:
        """Put the shard back once the worker is gone: two workers on a shard would damage one another's rows."""
        loss = worker.loss()
        self._workers.remove(worker)
        self._free_devices.append(worker.device)
        if worker.job is None:
            self._warn(f"{loss} while it waited")
        else:
            queue.give_back(worker.job, loss, worker.in_hand)

    def _idle_worker(self) -> "_Worker | None":
        """Return an idle worker, else start one on a free device; None while all are at work.

        Raises:
            GateauError: there is no worker, and none can be started.
        """
        idle = next((worker for worker in self._workers if worker.job is None), None)
        while idle is None and self._free_devices:
            idle = self._start(self._free_devices.popleft())
        return idle

    def _start(self, device: str) -> "_Worker | None":
        worker = _Worker(self._task, device)
        self._workers.append(worker)  # before it starts, so that an interrupt does not leave it behind
        try:
            worker.start()
        except OSError as error:
            self._workers.remove(worker)
            reason = f"A scoring worker on {device} cannot be started: {error}"
            if not self._workers and not self._free_devices:
                raise GateauError(f"{reason}. What was computed is kept: run again.") from error
            self._warn(f"{reason}; the others go on without it")
            return None
        return worker


class _Worker:
    """A worker process as the step sees it. `job`: its current work."""

    def __init__(self, task: ScoringTask, device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, self._its_end = context.Pipe()
        self.device = device
        self.job: ShardJob | None = None
        self._taken: list[str] = []
        self._finished = 0
        self._process = context.Process(
            target=run_worker, args=(task, device, self._its_end), daemon=True, name="scoring-worker"
        )

    def start(self) -> None:
        self._process.start()
        self._its_end.close()  # so that its death is the end of the pipe

    def give(self, job: ShardJob) -> None:
        """Send a job; raise OSError if the worker is gone."""
        self.job, self._taken, self._finished = job, [], 0
        self.connection.send(job)

    def take(self, message: Taken) -> None:
        """Record the sample that it takes."""
        self._finished = message.finished
        if message.sample_id is not None:
            self._taken.append(message.sample_id)

    @property
    def in_hand(self) -> frozenset[str]:
        """Return the samples that it is scoring."""
        return frozenset(self._taken[self._finished :])

    def stop(self) -> None:
        """Tell a working worker to stop, after which it saves its rows; an idle one ends when its pipe closes."""
        if self.job is not None and self._process.is_alive():
            self._process.terminate()
        else:
            self.connection.close()

    def end(self, deadline: float) -> None:
        """Wait for the end, and kill the worker after the deadline."""
        if self._process.pid is not None:
            self._process.join(max(0.0, deadline - time.monotonic()))
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
        self.connection.close()

    def loss(self) -> str:
        """Describe which worker was lost, and how it ended."""
        self.end(time.monotonic() + _GRACE_SECONDS)
        code = self._process.exitcode or 0
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        return f"The scoring worker on {self.device} (process {self._process.pid}) {how}"


POOL = Pool(name="processes", workers=ProcessWorkers)
