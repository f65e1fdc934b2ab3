"""Run a worker on a node of a Ray cluster: it checks its node, loads the model once, and reports its status.

Ray is not imported here: the step makes the class an actor (see ray_crew.py).
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
    """The task of a worker.

    device: in the notation of scoring.device. more: further data for its kind of work. leases: of the store, which the
    worker proves as the step does; see `fence.exported`.
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
    """The reasons why a node may not work, one per line."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """The status of a worker: the number of its piece.

    in_hand: ids that it has begun and not finished. report: its progress, if it reports any.
    """

    number: int
    in_hand: frozenset[str] = frozenset()
    report: Any = None


class NodeActor:
    """A worker on a node. `look` and `save` answer while `work` runs."""

    def __init__(self, task: NodeTask) -> None:
        redact_output()
        fence.adopt(task.leases)
        self._task = task
        self._lock = threading.Lock()
        self._look = Look(number=0)
        self._loaded: LoadedModel | None = None

    def start(self) -> Started | Refused | Failed:
        """Check whether this node may work, and load the model."""
        return self._told(self._started)

    def work(self, number: int, piece: Any) -> Any:
        """Return the result of a piece, or Failed."""
        with self._lock:
            self._look = Look(number=number)
        return self._told(lambda: self._done(piece))

    def look(self) -> Look:
        """Return the worker's status."""
        with self._lock:
            return self._look

    def save(self) -> None:
        """Save the waiting rows; the worker is about to end."""
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
        """Return the result, or the error without its traceback, which goes into the worker's log."""
        try:
            return work()
        except Exception as raised:
            error = redact_exception(raised)
            traceback.print_exception(error)
            return Failed(error=_placed(portable(error)))


def _placed(error: BaseException) -> BaseException:
    """Add the machine to a defect; a message for users names its place already."""
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
