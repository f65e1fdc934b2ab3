"""A worker on a node of a Ray cluster: looks whether its node may work, loads the model once, and tells what it is at.

Ray is not imported here: a class becomes an actor where the step makes it one (see ray_crew.py).
"""

import os
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, redact_exception, redact_output
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.pipeline.loadable import Placed
from gateau_dagster.storage import fence
from resources.pools.failed import Failed, portable
from resources.pools.node_check import Expected, problems
from resources.pools.node_model import node_model

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What a worker is for.

    device: in the words of scoring.device. more: what its kind of work needs beside that. leases: of the store, which
    the worker proves as the step does; see `fence.exported`.
    """

    config: Config
    placed: Placed
    device: str
    threads: int
    expected: Expected
    more: Any = None
    leases: str = ""


@dataclass(frozen=True, kw_only=True)
class Started:
    """A worker that has loaded its model. name: for people. node: its id in the cluster."""

    name: str
    node: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Why a node may not work, a line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a worker is at: the piece of this number.

    in_hand: ids of what it has begun of it and not finished. report: how far it is, where it tells.
    """

    number: int
    in_hand: frozenset[str] = frozenset()
    report: Any = None


class NodeActor:
    """See above. `look` and `save` answer while `work` does."""

    def __init__(self, task: NodeTask) -> None:
        redact_output()
        fence.adopt(task.leases)
        self._task = task
        self._lock = threading.Lock()
        self._look = Look(number=0)
        self._loaded: LoadedModel | None = None

    def start(self) -> Started | Refused | Failed:
        """Looks whether this node may work, and loads the model."""
        return self._told(self._started)

    def work(self, number: int, piece: Any) -> Any:
        """What becomes of a piece, or Failed."""
        with self._lock:
            self._look = Look(number=number)
        return self._told(lambda: self._done(piece))

    def look(self) -> Look:
        """What it is at."""
        with self._lock:
            return self._look

    def save(self) -> None:
        """Saves the rows that wait; the worker is about to end."""
        save_all_rows()

    def _done(self, piece: Any) -> Any:
        raise NotImplementedError

    def _started(self) -> Started | Refused:
        import ray

        if found := problems(self._task.expected):
            return Refused(lines=tuple(f"{socket.gethostname()}: {line}" for line in found))
        self._model()
        node = ray.get_runtime_context().get_node_id()
        return Started(name=f"{socket.gethostname()}, process {os.getpid()}", node=node)

    def _model(self) -> "LoadedModel":
        if self._loaded is None:
            self._loaded = _load(self._task)
        return self._loaded

    def _told(self, work: Callable[[], T]) -> T | Failed:
        """An exception crosses to the step without its traceback, which goes into the worker's log."""
        try:
            return work()
        except Exception as raised:
            error = redact_exception(raised)
            traceback.print_exception(error)
            return Failed(error=_placed(portable(error)))


def _placed(error: BaseException) -> BaseException:
    """A defect says on which machine; a message for users says what it is about."""
    if not isinstance(error, GateauError):
        error.add_note(f"(on {socket.gethostname()})")
    return error


def _load(task: NodeTask) -> "LoadedModel":
    import torch

    from gateau_dagster.models.encoders import load_for_task

    torch.set_num_threads(task.threads)
    config, scoring = task.config, task.config.scoring
    section = node_model(config, task.placed)
    return load_for_task(
        section, dtype=scoring.dtype, device=task.device, folder=config.folder, device_map=scoring.device_map
    )
