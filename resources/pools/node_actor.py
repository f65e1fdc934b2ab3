"""Run a worker on a node of a Ray cluster: it checks its node, loads the model once, and reports its status.

Ray is not imported here: the step makes the class an actor (see ray_crew.py).
"""

import fcntl
import hashlib
import os
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError, redact_exception, redact_output
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.models.model_digest import folder_digest
from gateau_dagster.pipeline.loadable import Placed, fetched_model
from gateau_dagster.storage import Store, fence
from resources.pools.failed import Failed, portable
from resources.pools.node_check import Expected, problems

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


def node_model(config: Config, placed: Placed) -> ModelConfig:
    """Return the model's section with a path that can be loaded here.

    Raises:
        GateauError, TransientError: the model is missing here or differs, or a made model cannot be fetched.
    """
    scratch = node_scratch(config)
    if placed.stored:
        with _alone(scratch):
            return fetched_model(Store(config.located_root), placed, scratch)
    kind, _, wanted = placed.version.partition(":")
    if kind == "hub":  # a branch may have moved on
        return placed.section.model_copy(update={"revision": wanted.rpartition(":")[2]})
    if kind == "folder":
        _check_folder(config, placed, wanted, scratch)
    return placed.section


def node_scratch(config: Config) -> Path:
    """Return this machine's folder for fetched models; create it if it is missing.

    Raises:
        GateauError: it cannot be written.
    """
    ray = config.execution.ray
    root = Path(ray.scratch).expanduser() if ray is not None and ray.scratch else None
    root = root or Path(tempfile.gettempdir()) / f"gateau-{os.getuid()}"
    folder = root / hashlib.sha256(config.located_root.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GateauError(
            f"{folder} on {socket.gethostname()} cannot be made ({error}). Name a folder for models that can be "
            "written on all machines: execution.ray.scratch"
        ) from error
    return folder


def _check_folder(config: Config, placed: Placed, wanted: str, scratch: Path) -> None:
    section, place = placed.section, f"{placed.place}.path"
    folder = config.folder / Path(section.path).expanduser()
    if not folder.is_dir():
        raise GateauError(
            f"{place}: there is no folder {folder.absolute()} on {socket.gethostname()}. Put it on a disk that all "
            "machines see at this path, or name a model on the hub"
        )
    if folder_digest(folder, scratch / "model_digests.json", section.verify) != wanted:
        raise GateauError(
            f"{place}: {folder.absolute()} on {socket.gethostname()} holds other files than where the run began. Copy "
            "them anew, or put the model on a disk that all machines see"
        )


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Lock the folder: a machine's workers fetch into it one at a time."""
    with (scratch / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
class WorkerStatus:
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
        self._look = WorkerStatus(number=0)
        self._loaded: LoadedModel | None = None

    def start(self) -> Started | Refused | Failed:
        """Check whether this node may work, and load the model."""
        return self._told(self._started)

    def work(self, number: int, piece: Any) -> Any:
        """Return the result of a piece, or Failed."""
        with self._lock:
            self._look = WorkerStatus(number=number)
        return self._told(lambda: self._done(piece))

    def look(self) -> WorkerStatus:
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
