"""Scoring in several processes: one worker a device, each with its own model, all taking shards from one queue."""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from types import TracebackType

from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_work import ShardResult, TableWork
from resources.scoring_worker import Failed, Finished, Job, WorkerTask, run_worker

# What a worker that is told to stop has for saving the rows of its shard.
_GRACE_SECONDS = 20.0


class ScoringWorkers:
    """The workers of one step; none of them outlives the `with` block.

    A pipe a worker and no common queue: a lock that a killed worker held would stop the others for ever.
    """

    def __init__(self, tasks: Sequence[WorkerTask]) -> None:
        self.workers = [_Worker(task) for task in tasks]

    def __enter__(self) -> "ScoringWorkers":
        try:
            for worker in self.workers:
                worker.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Each shard and its results by asset, as soon as a worker has written it.

        Raises:
            GateauError: a worker was killed. Whatever else ended a worker is raised as it was there.
        """
        waiting = deque(Job(shard=shard, works=works) for shard, works in shards.items())
        for worker in self.workers:
            worker.next(waiting)
        while busy := {worker.connection: worker for worker in self.workers if worker.job is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # pyright: ignore[reportArgumentType]
                message = worker.receive()
                if isinstance(message, ShardReport):
                    report(message)
                elif isinstance(message, Failed):
                    raise message.error
                else:
                    # The next shard first: what the caller does with this one takes its time.
                    worker.next(waiting)
                    yield message.shard, message.results

    def _end(self) -> None:
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self.workers:
            worker.end(deadline)


class _Worker:
    """A worker process as the step sees it. `job`: what it is doing."""

    def __init__(self, task: WorkerTask) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, self._its_end = context.Pipe()
        self.job: Job | None = None
        self._device = task.device
        self.process = context.Process(
            target=run_worker, args=(task, self._its_end), daemon=True, name="scoring-worker"
        )

    def start(self) -> None:
        self.process.start()
        self._its_end.close()  # so that its death is the end of the pipe

    def next(self, waiting: deque[Job]) -> None:
        """Gives it the next shard, if there is one."""
        self.job = waiting.popleft() if waiting else None
        if self.job is not None:
            try:
                self.connection.send(self.job)
            except OSError as error:
                raise self._death() from error

    def receive(self) -> ShardReport | Finished | Failed:
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error

    def stop(self) -> None:
        """A worker at work is told to stop, and saves its rows; an idle one ends by itself when its pipe does."""
        if self.job is not None and self.process.is_alive():
            self.process.terminate()
        else:
            self.connection.close()

    def end(self, deadline: float) -> None:
        """Waits for the end, and kills a worker that does not come to it."""
        if self.process.pid is not None:
            self.process.join(max(0.0, deadline - time.monotonic()))
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.connection.close()

    def _death(self) -> GateauError:
        self.process.join(_GRACE_SECONDS)
        code = self.process.exitcode or 0
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        shard = self.job.shard if self.job else "?"
        return GateauError(
            f"The scoring worker on {self._device} (process {self.process.pid}) {how} while it scored shard {shard}; "
            "often the system does so for lack of memory. What was computed is kept: run again, with fewer "
            "scoring.workers or a smaller scoring.batch_tokens if it happens again."
        )
