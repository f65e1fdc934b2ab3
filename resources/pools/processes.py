"""Score in several processes of this machine: one per device, each with its own model, served from one queue."""

# Why not the pools of the standard library: `ProcessPoolExecutor` gives up all its work when one worker dies.
# `multiprocessing.Pool` starts another worker, but never answers for the lost work. Neither knows which sample a worker
# had, and the system often kills one for lack of memory.
#
# Why processes and not threads: a crash, or a kill for lack of memory, takes one worker only. Threads would also share
# one interpreter, which has to start each operation of a device. The price is a copy of the model for each worker.

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from gateau_dagster.execution import collect_rarely
from gateau_dagster.execution.interruption import worker_ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.resources.pools.crew import Crew, Lost, Member, ScoringCrew
from gateau_dagster.resources.pools.piece_queue import Job
from gateau_dagster.resources.pools.pool import Pool, ScoringTask, Warn
from gateau_dagster.resources.pools.worker import Failed, ScoringWorker, WorkerStatus, WorkerTask

_SECONDS_BETWEEN_REPORTS = 0.2
_SECONDS_BETWEEN_LOOKS = 1.0
# Time for a stopped worker to save the rows of its piece.
_GRACE_SECONDS = 20.0
_SETTINGS = "scoring.device, scoring.device_map or scoring.workers"


def run_worker(task: WorkerTask, connection: Connection) -> None:
    """Run a worker from start to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the step too, which then ends its workers
    _end_with_parent()
    collect_rarely()
    with worker_ends_in_order(save_all_rows), suppress(EOFError):  # the step has closed its end
        worker = ScoringWorker(task, _Reports(connection).send)
        connection.send(worker.start())
        while True:
            number, piece = connection.recv()
            connection.send(worker.work(number, piece))


class _Reports:
    """The reports of a worker: each sample in hand, so that a death can be blamed on it; progress at intervals."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent = float("-inf")
        self._in_hand = 0

    def send(self, status: WorkerStatus) -> None:
        """Send a status, unless it tells little."""
        now, report, in_hand = time.monotonic(), status.report, len(status.in_hand or ())
        is_due = report is not None and (now - self._sent >= _SECONDS_BETWEEN_REPORTS or report.share == 1)
        if is_due or in_hand > self._in_hand or not in_hand:
            self._sent = now if is_due else self._sent
            self._connection.send(status if is_due else replace(status, report=None))
        self._in_hand = in_hand


def _end_with_parent() -> None:
    """End this process as soon as the step's process is gone, even by a kill without notice."""
    parent, pid = multiprocessing.parent_process(), os.getppid()
    assert parent is not None

    def watch() -> None:
        while parent.is_alive() and os.getppid() == pid:
            parent.join(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


@dataclass(kw_only=True, eq=False)
class _WorkerProcess(Member):
    """A worker process. There is one pipe per worker: a lock held by a killed worker would block the others forever."""

    process: Any
    connection: Connection
    device: str
    number: int = 0

    def end(self, deadline: float) -> None:
        """Wait for the end, and kill the worker after the deadline."""
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()

    def loss(self) -> str:
        """Describe which worker was lost, and how it ended, once it has: it must not write beside the next one."""
        self.end(time.monotonic() + _GRACE_SECONDS)
        code = self.process.exitcode or 0
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"
        return f"The scoring worker on {self.device} (process {self.process.pid}) {how}"


class ProcessCrew(Crew[_WorkerProcess]):
    """Processes of this machine, one per device."""

    cure = "All computed results are kept: run again with fewer scoring.workers or a smaller scoring.batch_tokens."

    def __init__(self, task: ScoringTask, warn: Warn) -> None:
        super().__init__(len(task.devices), warn)
        self._task = WorkerTask(
            config=task.config,
            placed=task.placed,
            section=task.section,
            more=task.model,
            device="",
            sharing=len(task.devices),
        )
        self._free_devices = deque(task.devices)
        self._ending: list[_WorkerProcess] = []

    def _start(self) -> _WorkerProcess:
        # A forked child could not use CUDA if this process has, and would inherit locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        device = self._free_devices[0]
        process = context.Process(
            target=run_worker,
            args=(replace(self._task, device=device), theirs),
            daemon=True,
            name="scoring-worker",
        )
        member = _WorkerProcess(process=process, connection=ours, device=device)
        self._ending.append(member)  # before it starts, so that an interrupt does not leave it behind
        try:
            process.start()
        except OSError:
            self._ending.remove(member)
            raise
        theirs.close()  # so that its death is the end of the pipe
        self._free_devices.popleft()
        return member

    def _send(self, member: _WorkerProcess, job: Job) -> None:
        member.number, member.in_hand = member.number + 1, frozenset()
        with suppress(OSError):  # it is gone: its pipe says so next
            member.connection.send((member.number, job.piece))

    def _end(self, member: _WorkerProcess) -> None:
        member.connection.close() if member.ready else member.process.terminate()
        self._free_devices.append(member.device)

    def _received(self, seconds: float) -> Iterator[tuple[_WorkerProcess, Any]]:
        """Yield the next message of each worker, idle ones too, so that no dead one gets a piece."""
        members = {member.connection: member for member in self._members}
        for connection in wait([*members], timeout=seconds):
            assert isinstance(connection, Connection)
            member = members[connection]
            try:
                answer = connection.recv()
            except (EOFError, OSError):
                how = member.loss()
                self._ending.remove(member)
                self._free_devices.append(member.device)
                yield member, Lost(member=member, how=how)
                continue
            if isinstance(answer, Failed):
                raise answer.error
            yield member, answer

    def close(self) -> None:
        """Tell working workers to stop, after which they save their rows; idle ones end when their pipe closes."""
        for member in self._ending:
            if member.ready and member.job is None:
                member.connection.close()
            elif member.process.is_alive():
                member.process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for member in self._ending:
            if member.process.pid is not None:
                member.end(deadline)


@contextmanager
def _workers(task: ScoringTask, warn: Warn) -> Iterator[ScoringCrew]:
    with closing(ProcessCrew(task, warn)) as crew:
        # A shard is not cut: its rows are those of one process, to the bit.
        yield ScoringCrew(crew=crew, task=task, settings=_SETTINGS, seconds=None)


POOL = Pool(name="processes", workers=_workers)
