"""Work on pieces in another process, on this machine or on a node of a cluster: load the model once, report the status.

A pool decides how a worker is started, and how its answers reach the step.
"""

import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError, redact_exception, redact_output
from gateau_dagster.evaluation.generation.answering import AskedTurn, Outcome
from gateau_dagster.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import Piece, PieceResult
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.resources.pools.node_check import Expected, node_model, problems
from gateau_dagster.storage import Store, fence

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """The task of a worker.

    placed: the model's place, valid on every machine. section: of the model, with a path that can be loaded here; None:
    the worker finds it. more: for its kind of work: the model's name, or the template of the prompts.
    device: in the notation of scoring.device. threads: of the CPU; 0: an equal part of this machine's, which `sharing`
    workers share. expected: of another machine; None for this one.
    leases: of the store, if the worker does not inherit them; see `fence.exported`.
    """

    config: Config
    placed: Placed
    section: ModelConfig | None = None
    more: str
    device: str
    threads: int = 0
    sharing: int = 1
    expected: Expected | None = None
    leases: str = ""


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker that has loaded its model. name: for people. node: its id in the cluster."""

    name: str
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The reasons why a machine may not work, one per line."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The reason why a worker ends."""

    error: BaseException


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """The status of a worker with the piece of this number.

    in_hand: ids that it has begun and not finished; None: unknown. report: its progress, if it reports any.
    """

    number: int
    in_hand: frozenset[str] | None = None
    report: ShardReport | None = None


def ignore(status: WorkerStatus) -> None:
    """Ignore the status: it is asked for."""
    del status


class Worker:
    """A worker. `status` and `save` answer while `work` runs.

    Args:
        task: of the worker.
        tell: receives each change of the status; maybe in a thread, one at a time.
    """

    def __init__(self, task: WorkerTask, tell: Callable[[WorkerStatus], None] = ignore) -> None:
        redact_output()
        fence.adopt(task.leases)
        self._task, self._tell = task, tell
        self._lock = threading.RLock()
        self._status = WorkerStatus(number=0)
        self._loaded: LoadedModel | None = None

    def start(self) -> Started | Refused | Failed:
        """Check whether this machine may work, and load the model."""
        return self._answered(self._started)

    def work(self, number: int, piece: Any) -> Any:
        """Return the result of a piece, or Failed."""
        self._change(WorkerStatus(number=number, in_hand=frozenset()))
        return self._answered(lambda: self._done(piece))

    def status(self) -> WorkerStatus:
        """Return the worker's status."""
        with self._lock:
            return self._status

    def save(self) -> None:
        """Save the waiting rows; the worker is about to end."""
        save_all_rows()

    def _done(self, piece: Any) -> Any:
        raise NotImplementedError

    def _change(self, status: WorkerStatus) -> None:
        with self._lock:
            self._status = status
            self._tell(status)

    def _started(self) -> Started | Refused:
        found = [] if self._task.expected is None else problems(self._task.expected)
        if found:
            return Refused(lines=tuple(f"{socket.gethostname()}: {line}" for line in found))
        self._model()
        return Started(name=f"{socket.gethostname()}, process {os.getpid()}", node=self._node())

    def _node(self) -> str:
        return ""

    def _model(self) -> "LoadedModel":
        if self._loaded is None:
            import torch

            from gateau_dagster.models.encoders import load_for_task

            task, scoring = self._task, self._task.config.scoring
            torch.set_num_threads(task.threads or max(1, torch.get_num_threads() // task.sharing))
            self._loaded = load_for_task(
                task.section or node_model(task.config, task.placed),
                dtype=scoring.dtype,
                device=task.device,
                folder=task.config.folder,
                device_map=scoring.device_map,
            )
        return self._loaded

    def _answered(self, work: Callable[[], T]) -> T | Failed:
        """Return the result, or the error; the traceback of an unforeseen one goes into the worker's log."""
        try:
            return work()
        except Exception as raised:
            error = redact_exception(raised)
            if not isinstance(error, GateauError):  # whose message the step prints
                traceback.print_exception(error)
            return Failed(error=_placed(portable(error)))


class ScoringWorker(Worker):
    """A worker that scores pieces of shards. `WorkerTask.more` is the model's name in the configuration."""

    def __init__(self, task: WorkerTask, tell: Callable[[WorkerStatus], None] = ignore) -> None:
        super().__init__(task, tell)
        self._scorer = ShardScorer(task.config, task.more, self._model, self._advance, self._begin)
        self._begun: list[str] = []

    def _done(self, piece: Piece) -> PieceResult:
        self._begun = []
        return self._scorer.score(self._store, piece)

    @cached_property
    def _store(self) -> Store:
        return Store(self._task.config.located_root)

    def _begin(self, sample_id: str) -> None:
        """Record a begun sample; samples are begun in a thread, and finished in their order."""
        with self._lock:
            self._begun.append(sample_id)
            self._advance(self._status.report)

    def _advance(self, report: ShardReport | None) -> None:
        with self._lock:
            finished = 0 if report is None else report.scored
            self._change(replace(self._status, in_hand=frozenset(self._begun[finished:]), report=report))


@dataclass(frozen=True, kw_only=True)
class AskedPiece:
    """Questions that are answered together: those of `asked` that are in `missing`; see `Engine.answers`."""

    asked: Sequence[AskedTurn]
    missing: frozenset[str]

    @property
    def ids(self) -> Sequence[str]:
        """Return the ids of its questions."""
        return sorted(self.missing)

    def part(self, ids: Sequence[str]) -> "AskedPiece":
        """Return the piece restricted to these questions."""
        return replace(self, missing=frozenset(ids))


class AnsweringWorker(Worker):
    """A worker that answers questions. `WorkerTask.more` is the template of the prompts."""

    def _done(self, piece: AskedPiece) -> list[Outcome]:
        from gateau_dagster.evaluation.generation.in_process import InProcess  # loads torch

        config, loaded = self._task.config, self._model()
        self._change(replace(self._status, in_hand=None))  # a pass takes many
        prompts = PromptBuilder(
            tokenizer=loaded.tokenizer,
            template=self._task.more,
            max_length=config.scoring.max_length,
            input_length=config.evaluation.input_length,
        )
        engine = InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)
        return [outcome for group in engine.answers(piece.asked, piece.missing) for outcome in group]


def portable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, else another one with the same message."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # an error's own pickling can raise anything
        known = isinstance(error, GateauError)
        return error.reworded(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")


def _placed(error: BaseException) -> BaseException:
    """Add the machine to a defect; a message for users names its place already."""
    if not isinstance(error, GateauError):
        error.add_note(f"(on {socket.gethostname()})")
    return error
