"""Score on a Ray cluster: actors load the model once, and receive pieces of shards from one queue."""

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.execution import RayConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.generation.answering import AskedTurn, Engine, Note, Outcome, unwatched
from gateau_dagster.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.execution.pieces import Piece, PieceResult, finish_shard
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult, TableWork, lacking_rows
from gateau_dagster.execution.shard_work import ShardProgress, read_samples
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.readable import plural
from gateau_dagster.storage import Store, fence
from resources.pools.node_actor import NodeActor, NodeTask, Refused, WorkerStatus
from resources.pools.node_check import marked_store
from resources.pools.piece_queue import MOST, Lacking, PieceJob, PieceQueue
from resources.pools.pool import Pool, ScoringTask, Warn
from resources.pools.ray_crew import Crew, Done, Event, Job, Looked, Lost, WorkerReady

# Seconds without a loaded worker before a warning that the cluster has no room.
_SECONDS_ALONE = 20.0
# Seconds for other workers to begin after all nodes that answered were refused.
_SECONDS_REFUSED = 60.0


class Queue(Protocol):
    """The work of a step."""

    def waiting(self) -> int:
        """Return the number of samples or questions that no worker has."""
        ...

    def take(self) -> Job | None:
        """Return the next piece."""
        ...


class Staff:
    """The autoscaler of one step. `most`: the largest number of workers."""

    def __init__(self, crew: Crew, most: int, warn: Warn) -> None:
        self._crew, self._most, self._warn = crew, most, warn
        self._since = time.monotonic()
        self._refused: dict[str, None] = {}
        self._refused_since = 0.0
        self._lost_at_start = 0
        self._said = False

    def serve(self, queue: Queue) -> bool:
        """Give pieces to idle workers, end unneeded ones, and return whether work is left.

        Raises:
            GateauError: no node may score.
        """
        waiting = queue.waiting()
        if waiting:
            self._crew.grow(min(self._most, self._crew.working + waiting))
            self._look_at_the_cluster()
        for worker in self._crew.idle:
            if (job := queue.take()) is None:
                self._crew.dismiss(worker)
            else:
                self._crew.give(worker, job)
        if not queue.waiting():
            self._crew.dismiss_waiting()
        return self._crew.working > 0 or bool(queue.waiting())

    def heed(self, event: Event) -> None:
        """Update the state of the cluster from an event.

        Raises:
            GateauError: no node may score, or workers die before they begin.
        """
        if isinstance(event, WorkerReady):
            self._lost_at_start = 0
        elif isinstance(event, Refused):
            self._refuse(event)
        elif isinstance(event, Lost) and event.job is None:
            self._lose(event)

    def _refuse(self, event: Refused) -> None:
        """Reduce the number of workers, since another one might be placed on the same node."""
        self._refused_since = self._refused_since or time.monotonic()
        for line in event.lines:
            if line not in self._refused:
                self._refused[line] = None
                self._warn(f"A node of the Ray cluster does not score: {line}")
        self._most -= 1

    def _lose(self, event: Lost) -> None:
        if event.began or event.machine:
            self._warn(f"{event.how} while it waited" if event.began else event.how)
            return
        self._lost_at_start += 1
        self._warn(f"{event.how}, loss {self._lost_at_start} of {MOST} in a row")
        if self._lost_at_start >= MOST and not self._crew.ready:
            raise GateauError(
                f"{event.how}: {self._lost_at_start} in a row were lost before they began, and none is at work; often "
                "the system kills them for lack of memory. Ray's logs on the nodes say more."
            )
        if self._lost_at_start >= MOST:
            self._most = max(1, self._most - 1)

    def _look_at_the_cluster(self) -> None:
        now = time.monotonic()
        if self._crew.ready:
            return
        if self._refused and (self._most <= 0 or now - self._refused_since > _SECONDS_REFUSED):
            raise GateauError("No node of the Ray cluster can score: " + "; ".join(self._refused))
        if not self._said and now - self._since > _SECONDS_ALONE and not self._crew.fits():
            self._said = True
            self._warn(
                f"No node of the Ray cluster has room for a worker, of which each needs {self._crew.needs()}; there "
                f"are {self._crew.offers()}. The workers wait until the cluster grows"
            )


@dataclass(frozen=True, kw_only=True)
class AskedPiece:
    """Questions that are answered together: those of `asked` that are in `missing`; see `Engine.answers`."""

    asked: Sequence[AskedTurn]
    missing: frozenset[str]


class AnsweringActor(NodeActor):
    """A worker that answers questions. `NodeTask.more` is the template of the prompts."""

    def _done(self, piece: AskedPiece) -> list[Outcome]:
        from gateau_dagster.evaluation.generation.in_process import InProcess  # loads torch

        config, loaded = self._task.config, self._model()
        with self._lock:
            self._look = replace(self._look, in_hand=piece.missing)
        prompts = PromptBuilder(
            tokenizer=loaded.tokenizer,
            template=self._task.more,
            max_length=config.scoring.max_length,
            input_length=config.evaluation.input_length,
        )
        engine = InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)
        return [outcome for group in engine.answers(piece.asked, piece.missing) for outcome in group]


@dataclass(frozen=True, kw_only=True)
class FinishedPiece:
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

    def _done(self, piece: Piece) -> FinishedPiece:
        self._taken = []
        scorer = ShardScorer(self._task.config, self._task.more, self._model)
        result = scorer.piece(self._store, piece, self._advance, on_taken=self._take, texts=self._samples)
        return FinishedPiece(result=result, report=self._look.report)

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

    def _looked(self, report: ShardReport | None) -> WorkerStatus:
        finished = 0 if report is None else report.progress.scored
        return replace(self._look, in_hand=frozenset(self._taken[finished:]), report=report)


# Pieces per worker: many, so that uneven ends and lost pieces cost little.
_PIECES = 8
_SECONDS = 0.5
_GIVEN_UP = f"{MOST} workers died over this question, often killed by the system for lack of memory"


class RayAnswers:
    """An engine on a Ray cluster. It lives within `connected` during the step; `close` ends its workers."""

    def __init__(self, ray_config: RayConfig, task: NodeTask, warn: Warn) -> None:
        self._ray, self._warn = ray_config, warn
        self._crew = Crew(ray_config, AnsweringActor, task)

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Implement Engine.answers: yield the outcomes of each piece as a group.

        Raises:
            GateauError: for the reasons of `Staff` and `AskedQueue.give_back`; an actor's own.
        """
        queue = AskedQueue(asked, frozenset(missing), pieces=self._ray.workers * _PIECES, warn=self._warn)
        staff = Staff(self._crew, self._ray.workers, self._warn)
        while staff.serve(queue):
            note(f"{plural(queue.waiting(), 'question')} no worker has begun")
            for event in self._crew.events(_SECONDS):
                staff.heed(event)
                if isinstance(event, Done):
                    queue.took()
                    yield event.answer
                elif isinstance(event, Lost) and event.job is not None:
                    rejected = queue.give_back(event.job, event.how, machine=event.machine)
                    if rejected:
                        yield rejected

    def close(self) -> None:
        """End the workers."""
        self._crew.close()


@dataclass(frozen=True, kw_only=True)
class AskedJob:
    """A piece, and the number of workers that were lost over it."""

    piece: AskedPiece
    losses: int = 0


class AskedQueue:
    """The questions of one turn, in pieces of about equal length, the longest first.

    The pieces divide all questions, so that grouping does not depend on earlier answers. If the longest pieces kill
    their workers, the shortest follow until one is answered, since length may be the cause.
    """

    def __init__(self, asked: Sequence[AskedTurn], missing: frozenset[str], *, pieces: int, warn: Warn) -> None:
        self._warn = warn
        self._waiting: deque[AskedJob] = deque()
        self._rejected, self._answered = 0, False
        for some in _pieces(asked, pieces):
            wanted = missing & {each.question.question_id for each in some}
            if wanted:
                self._waiting.append(AskedJob(piece=AskedPiece(asked=some, missing=wanted)))

    def waiting(self) -> int:
        """Return the number of questions that no worker has."""
        return sum(len(job.piece.missing) for job in self._waiting)

    def take(self) -> AskedJob | None:
        """Return the next piece."""
        if not self._waiting:
            return None
        return self._waiting.pop() if self._in_doubt else self._waiting.popleft()

    def took(self) -> None:
        """Note that a piece is answered."""
        self._answered = True

    def give_back(self, job: AskedJob, loss: str, *, machine: bool) -> list[Outcome]:
        """Put the piece of a lost worker first, halved after three losses; reject a single question.

        Return the reject, if there is one.

        Raises:
            GateauError: several questions were rejected, and none was answered.
        """
        piece, losses = job.piece, job.losses + (not machine)
        self._warn(f"{loss} while it answered {len(piece.missing)} questions (loss {losses} of {MOST})")
        if losses < MOST:
            self._put_back(replace(job, losses=losses))
            return []
        if len(piece.missing) == 1:
            [question] = piece.missing
            return [self._reject(question)]
        names = sorted(piece.missing)
        for half in (names[len(names) // 2 :], names[: len(names) // 2]):
            some = replace(piece, missing=frozenset(half))
            self._put_back(AskedJob(piece=some, losses=MOST - 1))
        return []

    @property
    def _in_doubt(self) -> bool:
        """Return whether workers may die whatever they get."""
        return self._rejected > 0 and not self._answered

    def _put_back(self, job: AskedJob) -> None:
        """Put the job back as the next one."""
        if self._in_doubt:
            self._waiting.append(job)
        else:
            self._waiting.appendleft(job)

    def _reject(self, question: str) -> Reject:
        self._rejected += 1
        if self._rejected >= MOST and not self._answered:
            raise GateauError(
                f"Workers die over each question, and none was answered: {self._rejected} questions took {MOST} "
                "workers each. Often the system kills them for lack of memory; Ray's logs on the nodes say more."
            )
        return Reject(sample_id=question, reason=_GIVEN_UP, short_of_memory=True)


def _pieces(asked: Sequence[AskedTurn], most: int) -> Iterator[list[AskedTurn]]:
    """Yield at most `most` pieces of questions of about the same length, since padding is work."""
    sizes = [_size(each) for each in asked]
    target, piece, size = sum(sizes) / most, list[AskedTurn](), 0
    for place in sorted(range(len(asked)), key=lambda each: (-sizes[each], each)):
        piece.append(asked[place])
        size += sizes[place]
        if size >= target:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _size(asked: AskedTurn) -> int:
    """Return the estimated characters of the prompt and of the answer."""
    said = asked.question.generation.max_new_tokens * 4
    return 1 + said + sum(len(turn) for turn in asked.question.turns[: asked.turn + 1])


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


_CONNECT_SECONDS = 10.0


@contextmanager
def connected(ray_config: RayConfig) -> Iterator[None]:
    """Make this process a driver of the cluster within the block; an existing driver (dagster-ray) stays one.

    Raises:
        GateauError: Ray is not installed, there is no such cluster, or its version differs.
    """
    try:
        import ray
    except ImportError as error:
        raise GateauError(
            f"execution.ray: the package ray is not installed ({error}): pip install 'gateau-dagster[ray]'"
        ) from error
    if ray.is_initialized():
        yield
        return
    named = os.environ.get("RAY_ADDRESS", "auto") if ray_config.address == "auto" else ray_config.address
    place = None
    try:
        place = _place(named)
        _check_answers(place)
        with _own_signals():
            ray.init(address=place, configure_logging=False, log_to_driver=False, namespace=f"gateau-{os.getpid()}")
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise GateauError(f"execution.ray.address: {_without_cluster(named, place, error)}") from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()


def _without_cluster(named: str, place: str | None, error: Exception) -> str:
    if place is None and isinstance(error, ConnectionError):
        return (
            "auto finds no Ray cluster that this machine is a node of. Make it one (`ray start --address host:6379`, "
            "or `ray start --head` for a new cluster), or give the address"
        )
    reason = " ".join(str(error).split())[:500]
    where = f"{place}, where auto finds the last one of this machine" if named == "auto" else named
    return f"no Ray cluster answers at {where} ({reason}). Start one there (`ray start --head`), or correct it"


def _place(address: str) -> str:
    """Return host:port; for auto, the address of this machine's last cluster, running or not.

    Raises ConnectionError if there was none, and ValueError for an invalid address.
    """
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:  # other versions of Ray keep it elsewhere, and search longer
        return address
    return canonicalize_bootstrap_address(address) or address


def _check_answers(address: str) -> None:
    """Check that a cluster's head answers, and no other service; Ray itself would retry for a quarter of an hour.

    Raises OSError.
    """
    import grpc

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return  # Ray reports what is wrong, and has the certificates
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise ConnectionError("what listens there is no head of a cluster, whose port is usually 6379") from error
    finally:
        channel.close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore our signal handlers after Ray takes SIGTERM; ours end a run in order (`execution/interruption.py`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The longest wait for an event.


class RayWorkers:
    """Scoring workers on a Ray cluster. They save rows with each piece; the step's process makes the tables."""

    def __init__(self, task: ScoringTask, warn: Warn) -> None:
        self._task, self._warn = task, warn
        self._ray = _section(task.config)
        self._opened = ExitStack()

    def __enter__(self) -> "RayWorkers":
        with ExitStack() as opening:
            task = opening.enter_context(_on_cluster(self._task.config, self._task.placed, self._task.model))
            self._crew = Crew(self._ray, ScoringActor, task)
            opening.callback(self._crew.close)
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def results(
        self, shards: Mapping[str, Sequence[TableWork]], report: Report
    ) -> Iterator[tuple[str, dict[str, ShardResult]]]:
        """Implement ScoringWorkers.results."""
        opened = OpenShards(Store(self._task.config.located_root), report)
        queue = PieceQueue(
            shards=shards,
            lacking=lambda shard: opened.open(shard, shards[shard]),
            costs=self._task.costs,
            workers=self._ray.workers,
            seconds=self._ray.piece_minutes * 60,
            warn=self._warn,
        )
        staff = Staff(self._crew, self._ray.workers, self._warn)
        try:
            # The next pieces come first, since the caller's work on a shard takes time.
            while (busy := staff.serve(queue)) or opened:
                yield from opened.finished(patience=0.0 if busy else _SECONDS)
                for event in self._crew.events(_SECONDS) if busy else []:
                    staff.heed(event)
                    _heed(event, queue, opened)
        finally:
            opened.close()


@contextmanager
def _answers(config: Config, placed: Placed, template: str, warn: Warn) -> Iterator[Engine]:
    """Implement Pool.answers."""
    with _on_cluster(config, placed, template) as task, closing(RayAnswers(_section(config), task, warn)) as engine:
        yield engine


@contextmanager
def _on_cluster(config: Config, placed: Placed, more: str) -> Iterator[NodeTask]:
    """Yield the task for actors that start within the block."""
    ray = _section(config)
    with connected(ray), marked_store(config.located_root, cuda=ray.gpus > 0) as expected:
        yield NodeTask(
            config=config,
            placed=placed,
            more=more,
            device=_devices(config, "", 1)[0],
            threads=max(1, int(ray.cpus)),
            expected=expected,
            leases=fence.exported(),
        )


def _heed(event: Event, queue: PieceQueue, opened: OpenShards) -> None:
    if isinstance(event, Looked) and event.look.report is not None:
        opened.advance(event.worker, event.look.report)
    elif isinstance(event, Done):
        report = event.answer.report
        queue.took(event.job, report.seconds if report is not None else 0.0)
        opened.add(event.worker, event.job, event.answer.result, report)
    elif isinstance(event, Lost) and event.job is not None:
        opened.lose(event.worker, event.job)
        given_up = queue.give_back(event.job, event.how, event.in_hand, machine=event.machine)
        if given_up is not None:
            opened.add(None, event.job, given_up)


def _section(config: Config) -> RayConfig:
    assert config.execution.ray is not None, "the configuration checks it"
    return config.execution.ray


def _devices(config: Config, place: str, shards: int) -> list[str]:
    """Return a device per worker; the GPU that Ray assigns to a worker is the only one that it sees."""
    del place, shards  # place is this machine's, and shards are cut into pieces
    ray, spread = _section(config), config.scoring.device_map is not None
    return [("auto" if spread else "cuda") if ray.gpus else "cpu"] * ray.workers


POOL = Pool(name="ray", workers=RayWorkers, devices=_devices, answers=_answers, elsewhere=True)
