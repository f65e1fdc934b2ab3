"""Serve a queue of pieces to the workers of one step, wherever they run, and turn finished pieces into tables."""

# How a crew works: one thread of the step's process gives out pieces and handles one event after another. So its state
# needs no locks. Only finished tables are written by other threads, as a slow store would delay the workers.
#
# What differs between pools is four calls: start, send, end and receive. What must not differ is here: who gets which
# work, when a crew grows or shrinks, and when a step gives up.
#
# Why it gives up: a worker that dies while it loads would often die again, whatever its sample, and each attempt loads
# the model. MOST such deaths in a row end the step while no other worker is ready.

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.shard_scorer import Report, ShardReport
from gateau_dagster.execution.shard_tables import Piece, PieceResult, ShardResult, finish_shard
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.resources.pools.piece_queue import MOST, Job, JobQueue, PieceQueue
from gateau_dagster.resources.pools.pool import ScoringTask, Warn
from gateau_dagster.resources.pools.worker import Refused, Started, Worker, WorkerStatus
from gateau_dagster.storage import Store

# The longest wait for an event.
SECONDS = 0.5
# Seconds without a loaded worker before a warning that there is no room.
_SECONDS_ALONE = 20.0
# Seconds for other workers to begin after all that answered were refused.
_SECONDS_REFUSED = 60.0


@dataclass(kw_only=True, eq=False)
class Member:
    """A worker as the step sees it. name: for people. ready: it has loaded its model. job: its current work.

    in_hand: ids that it has begun and not finished; None: unknown.
    """

    name: str = ""
    ready: bool = False
    job: Job | None = None
    in_hand: frozenset[str] | None = None


M = TypeVar("M", bound=Member)


@dataclass(frozen=True, kw_only=True)
class Done:
    """A worker has finished its piece."""

    member: Member
    job: Job
    answer: Any


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """A worker reports its progress with its piece."""

    member: Member
    report: ShardReport


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A worker is gone, and how. machine: its machine is gone, too."""

    member: Member
    how: str
    machine: bool = False


Event = Done | Advanced | Lost


class Crew(ABC, Generic[M]):
    """The workers of one step: started as work waits, replaced when lost, ended when there is no more work.

    Args:
        most: the largest number of workers.
        warn: receives which worker was lost, and why others do not work.
    """

    cure: ClassVar[str]
    """The change that may help if every worker dies, as a sentence."""

    def __init__(self, most: int, warn: Warn) -> None:
        self._most, self.warn = most, warn
        self._members: list[M] = []
        self._since = time.monotonic()
        self._refused: dict[str, None] = {}
        self._refused_since = 0.0
        self._lost_at_start = 0
        self._warned_of_room = False

    @abstractmethod
    def _start(self) -> M:
        """Start a worker; raise OSError if that is impossible here."""

    @abstractmethod
    def _send(self, member: M, job: Job) -> None:
        """Send a piece to an idle worker."""

    @abstractmethod
    def _end(self, member: M) -> None:
        """End a worker without work."""

    @abstractmethod
    def _received(self, seconds: float) -> Iterator[tuple[M, Any]]:
        """Yield the new answers of `Worker`, and Lost for a worker that is gone; wait up to `seconds` for the first."""

    @abstractmethod
    def close(self) -> None:
        """Have working workers save their rows, and end all."""

    def _no_room(self) -> str:
        # Only a cluster can lack room: on this machine, a worker starts or fails at once.
        return ""

    def serve(self, queue: JobQueue) -> bool:
        """Give pieces to idle workers, end unneeded ones, and return whether work is left.

        Raises:
            GateauError: no worker can work.
        """
        if waiting := queue.waiting():
            self._grow(min(self._most, self._working + waiting))
            self._check_progress()
        for member in [each for each in self._members if each.ready and each.job is None]:
            if (job := queue.take()) is None:
                # Its model holds memory that others could use. If work comes back, another worker starts.
                self._dismiss(member)
            else:
                member.job, member.in_hand = job, None
                self._send(member, job)
        if not queue.waiting():
            for member in [each for each in self._members if not each.ready]:
                self._dismiss(member)
        return self._working > 0 or bool(queue.waiting())

    def events(self) -> Iterator[Event]:
        """Yield the events of the pieces; wait a moment for the first event.

        Raises:
            GateauError: no worker may work, or workers die before they begin.
            Exception: a worker's own failure.
        """
        for member, answer in self._received(SECONDS):
            if member not in self._members:
                continue
            if isinstance(answer, Lost):
                self._members.remove(member)
                if member.job is None:
                    self._lose_idle(answer)
                else:
                    yield answer
            elif isinstance(answer, Refused):
                self._refuse(member, answer)
            elif isinstance(answer, Started):
                member.name, member.ready, self._lost_at_start = answer.name, True, 0
            elif isinstance(answer, WorkerStatus):
                member.in_hand = answer.in_hand
                if answer.report is not None:
                    yield Advanced(member=member, report=answer.report)
            else:
                job, member.job = member.job, None
                assert job is not None
                yield Done(member=member, job=job, answer=answer)

    @property
    def _working(self) -> int:
        return sum(each.job is not None for each in self._members)

    def _grow(self, size: int) -> None:
        while len(self._members) < size:
            try:
                self._members.append(self._start())
            except OSError as error:
                reason = f"A scoring worker cannot be started: {error}"
                self._most = size = len(self._members)
                if not size:
                    raise GateauError(
                        "execution.no_worker", f"{reason}. All computed results are kept: run again."
                    ) from error
                self.warn(f"{reason}; the others go on without it")

    def _dismiss(self, member: M) -> None:
        self._members.remove(member)
        self._end(member)

    def _refuse(self, member: M, answer: Refused) -> None:
        """Reduce the number of workers, since another one might be placed on the same node."""
        self._dismiss(member)
        self._refused_since = self._refused_since or time.monotonic()
        for line in answer.lines:
            if line not in self._refused:
                self._refused[line] = None
                self.warn(f"A node of the Ray cluster does not score: {line}")
        self._most -= 1

    def _lose_idle(self, lost: Lost) -> None:
        if lost.member.ready or lost.machine:
            self.warn(f"{lost.how} while it waited" if lost.member.ready else lost.how)
            return
        self._lost_at_start += 1
        self.warn(f"{lost.how}, loss {self._lost_at_start} of {MOST} in a row")
        if self._lost_at_start >= MOST and not self._any_ready:
            raise GateauError(
                "execution.workers_die",
                f"{lost.how}: {self._lost_at_start} workers in a row died before they began, and none is left. The "
                "system often kills them for lack of memory. Read their logs.",
            )
        if self._lost_at_start >= MOST:
            self._most = max(1, self._most - 1)

    @property
    def _any_ready(self) -> bool:
        return any(each.ready for each in self._members)

    def _check_progress(self) -> None:
        now = time.monotonic()
        if self._any_ready:
            return
        if self._refused and (self._most <= 0 or now - self._refused_since > _SECONDS_REFUSED):
            lines = "; ".join(self._refused)
            raise GateauError("execution.ray_nodes", f"No node of the Ray cluster can score: {lines}")
        if not self._warned_of_room and now - self._since > _SECONDS_ALONE and (reason := self._no_room()):
            self._warned_of_room = True
            self.warn(reason)


@dataclass(frozen=True, kw_only=True)
class Crews:
    """Workers of the pool `name` for other work than scoring. A module of this package that has them defines CREWS.

    crew: a context with workers of a class, from a configuration, a placed model and `WorkerTask.more`. The last
    argument receives warnings, see Pool.
    """

    name: str
    crew: Callable[[Config, Placed, str, type[Worker], Warn], AbstractContextManager[Crew[Any]]]


# Tables are written beside the queue: with many workers, shards finish in quick succession.
_WRITERS = 4
Finished = tuple[str, dict[str, ShardResult]]


@dataclass(frozen=True, kw_only=True)
class ScoringCrew:
    """A crew that saves rows with each piece; the step's process makes the tables.

    settings, seconds: see PieceQueue.
    """

    crew: Crew[Any]
    task: ScoringTask
    settings: str
    seconds: float | None

    def results(self, shards: Sequence[Piece], report: Report) -> Iterator[Finished]:
        """Implement ScoringWorkers.results."""
        opened = _OpenShards(Store(self.task.config.located_root), shards, report)
        queue = PieceQueue(
            shards,
            workers=len(self.task.devices),
            warn=self.crew.warn,
            settings=self.settings,
            cure=self.crew.cure,
            costs=self.task.costs,
            seconds=self.seconds,
        )
        try:
            # The next pieces come first, since the caller's work on a shard takes time.
            while (busy := self.crew.serve(queue)) or opened:
                yield from opened.finished(patience=0.0 if busy else SECONDS)
                for event in self.crew.events() if busy else ():
                    if isinstance(event, Advanced):
                        opened.advance(event.member, event.report)
                    elif isinstance(event, Done):
                        queue.took(event.job, event.answer.total("seconds"))
                        opened.add(event.job.piece, event.answer, event.member)
                    else:
                        job = opened.lose(event.member)
                        rejected = queue.give_back(job, event.how, event.member.in_hand, machine=event.machine)
                        if rejected is not None:
                            [assets] = job.piece.lacking.values()
                            opened.add(job.piece, PieceResult(rejects={asset: [rejected] for asset in assets}))
        finally:
            opened.close()


@dataclass(kw_only=True)
class _Shard:
    """The state of a shard. scored, tokens, seconds: of finished pieces. now: reports of running pieces."""

    whole: Piece
    results: list[PieceResult] = field(default_factory=list)
    scored: int = 0
    tokens: int = 0
    seconds: float = 0.0
    now: dict[Member, ShardReport] = field(default_factory=dict)

    def report(self) -> ShardReport:
        total, working = len(self.whole.lacking), self.now.items()
        share = self.scored + sum(each.share * len(member.job.piece.ids) for member, each in working if member.job)
        return ShardReport(
            shard=self.whole.shard,
            scored=min(total, self.scored + sum(each.scored for _, each in working)),
            share=min(1.0, share / total),
            tokens=self.tokens + sum(each.tokens for _, each in working),
            seconds=self.seconds + sum(each.seconds for _, each in working),
        )


class _OpenShards:
    """The unfinished shards of one step. `report`: receives their progress, as in `ScoringWorkers.results`."""

    def __init__(self, store: Store, shards: Sequence[Piece], report: Report) -> None:
        self._store, self._report = store, report
        self._shards = {shard.shard: _Shard(whole=shard) for shard in shards}
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="finish-shard")
        self._writing: dict[Future[dict[str, ShardResult]], str] = {}

    def advance(self, member: Member, report: ShardReport) -> None:
        """Record a worker's progress with its piece."""
        found = self._shards[report.shard]
        found.now[member] = report
        self._report(found.report())

    def add(self, piece: Piece, done: PieceResult, member: Member | None = None) -> None:
        """Add a finished piece; `member`: who has scored it."""
        found = self._shards[piece.shard]
        if member is not None:
            found.now.pop(member, None)
        found.results.append(done)
        found.scored += len(piece.lacking)
        found.tokens += int(done.total("tokens"))
        found.seconds += done.total("seconds")
        self._report(found.report())
        if found.scored == len(found.whole.lacking):
            writing = self._writers.submit(finish_shard, self._store, found.whole, found.results)
            self._writing[writing] = piece.shard

    def lose(self, member: Member) -> Job:
        """Discard the progress of a lost worker's piece; return what is left of its job, maybe nothing."""
        job = member.job
        assert job is not None
        found = self._shards[job.piece.shard]
        found.now.pop(member, None)
        # The store knows which rows the lost worker has saved, even if its last messages were lost.
        lacking = Piece.whole(self._store, found.whole.shard, found.whole.works).lacking
        left = {sample_id: lacking[sample_id] for sample_id in job.piece.ids if sample_id in lacking}
        saved = job.piece.part([sample_id for sample_id in job.piece.ids if sample_id not in left])
        if saved.lacking:
            self.add(saved, PieceResult())
        else:
            self._report(found.report())
        cost = job.cost * len(left) / len(job.piece.ids)
        return replace(job, piece=replace(job.piece, lacking=left), cost=cost)

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
