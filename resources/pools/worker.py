"""Work on pieces in another process, on this machine or on a node of a cluster: load the model once, report the status.

A pool decides how a worker is started, and how its answers reach the step.
"""

# Why a machine is checked before it scores: other packages, another model or another version of the code could give
# other scores under the same fingerprint. Nobody could see that later. A check costs a few reads, and one of the whole
# model's folder if its digest is not known there yet.
#
# Why a marker in the store: an equal path or address may be another disk on another machine. Whoever reads the random
# content of the marker sees the same store.
#
# What a scoring worker returns is small: it saves its rows in the store itself, so that they outlive it.

import fcntl
import hashlib
import os
import pickle
import platform
import socket
import tempfile
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError, redact_exception, redact_output
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import Piece, PieceResult
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.models.model_digest import folder_digest
from gateau_dagster.pipeline.loadable import Placed, fetched_model
from gateau_dagster.storage import Store, fence
from gateau_dagster.storage.files import Files

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel


_FOLDER = "_workers"
# Packages that determine results; of torch the release counts, not the build for a CPU or a GPU.
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "polars", "numpy")
_SOURCES = ("gateau_dagster", "gateau_dagster/resources")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The requirements for every machine that scores.

    root: of the store. marker: the name of a file in it, with its content. code: digest of this project's sources.
    versions: of packages, by name. cuda: whether its worker has a GPU.
    """

    root: str
    marker: str
    content: str
    code: str
    versions: Mapping[str, str]
    cuda: bool


@contextmanager
def marked_store(root: str, *, cuda: bool) -> Iterator[Expected]:
    """Yield a description of this machine, with a marker in the store during the block.

    Raises:
        GateauError, TransientError: the store cannot be written.
    """
    files, name, content = Files(root), f"{_FOLDER}/{uuid.uuid4().hex}", uuid.uuid4().hex
    files.write(name, content.encode())
    try:
        yield Expected(
            root=root, marker=name, content=content, code=code_digest(), versions=installed_versions(), cuda=cuda
        )
    finally:
        files.remove(name)


def problems(expected: Expected) -> list[str]:
    """Return why this machine may not score, one reason per line; empty if it may."""
    found = [*_version_problems(expected.versions, installed_versions())]
    if expected.code != code_digest():
        found.append(
            f"its gateau-dagster differs from the one that began this run ({version('gateau-dagster')} there, with "
            "other sources). Install the same on all machines"
        )
    if (seen := _marker_problem(expected)) is not None:
        found.append(seen)
    if expected.cuda and (missing := _gpu_problem()) is not None:
        found.append(missing)
    return found


def _marker_problem(expected: Expected) -> str | None:
    try:
        content = Files(expected.root).read(expected.marker).decode()
    except FileNotFoundError:
        content = None
    except GateauError as error:
        return f"it cannot read the store {expected.root}: {error}"
    if content == expected.content:
        return None
    return (
        f"it does not see the store {expected.root} as this machine does. Put the store on S3 or on a disk that all "
        "machines share at this path"
    )


def _gpu_problem() -> str | None:
    import torch

    if torch.cuda.is_available():
        return None
    built = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU answers"
    return f"its worker has a GPU, but torch finds none ({built}). Set execution.ray.gpus to 0 to score on the CPU"


def _version_problems(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    for name, want in wanted.items():
        if found.get(name) != want:
            yield f"{name} is {found.get(name, 'missing')} there, and {want} here. Install the same on all machines"


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine results."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            found[name] = version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return found


@cache
def code_digest() -> str:
    """Return the SHA-256 (hex) over this project's sources that score."""
    total, root = hashlib.sha256(), Path(str(files("gateau_dagster"))).parent
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*.py")):
            total.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()


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
        GateauError: the folder cannot be written.
    """
    ray = config.execution.ray
    root = Path(ray.scratch).expanduser() if ray is not None and ray.scratch else None
    root = root or Path(tempfile.gettempdir()) / f"gateau-{os.getuid()}"
    folder = root / hashlib.sha256(config.located_root.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise GateauError(
            "execution.ray",
            f"{folder} on {socket.gethostname()} cannot be created ({error}). Name a folder that is writable on all "
            "machines in execution.ray.scratch",
        ) from error
    return folder


def _check_folder(config: Config, placed: Placed, wanted: str, scratch: Path) -> None:
    section, place = placed.section, f"{placed.place}.path"
    folder = config.folder / Path(section.path).expanduser()
    if not folder.is_dir():
        raise GateauError(
            "execution.ray_model",
            f"{place}: there is no folder {folder.absolute()} on {socket.gethostname()}. Put it on a disk that all "
            "machines see at this path, or name a model on the hub",
        )
    if folder_digest(folder, scratch / "model_digests.json", section.verify) != wanted:
        raise GateauError(
            "execution.ray_model",
            f"{place}: {folder.absolute()} on {socket.gethostname()} has other files than the machine where the run "
            "began. Copy the folder again, or put the model on a disk that all machines see",
        )


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    # The workers of a machine share the fetched models, and would otherwise fetch one at the same time.
    with (scratch / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """The task of a worker.

    placed: the model's place, valid on every machine. section: of the model, with a path that can be loaded here; None:
    the worker finds it. more: for its kind of work: the model's name, or the template of the prompts.
    device: in the notation of scoring.device. threads: of the CPU; 0: an equal part of this machine's, which `sharing`
    workers share. expected: of another machine; None for this one.
    leases: of the store, if the worker does not inherit them; see `fence.exported`.
    node: returns the id of the worker's machine in its cluster; empty without a cluster.
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
    node: Callable[[], str] = str


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
        return Started(name=f"{socket.gethostname()}, process {os.getpid()}", node=self._task.node())

    def _model(self) -> "LoadedModel":
        if self._loaded is None:
            import torch

            from gateau_dagster.models.loading import load_for_task

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
        self._scorer = ShardScorer(
            task.config, partial(all_sample_tables, task.config), task.more, self._model, self._advance, self._begin
        )
        self._begun: list[str] = []

    def _done(self, piece: Piece) -> PieceResult:
        self._begun = []
        return self._scorer.score(self._store, piece)

    @cached_property
    def _store(self) -> Store:
        return Store(self._task.config.located_root)

    def _begin(self, sample_id: str) -> None:
        # Samples are begun in another thread, and finished in their order. So those after the finished ones are in
        # hand.
        with self._lock:
            self._begun.append(sample_id)
            self._advance(self._status.report)

    def _advance(self, report: ShardReport | None) -> None:
        with self._lock:
            finished = 0 if report is None else report.scored
            self._change(replace(self._status, in_hand=frozenset(self._begun[finished:]), report=report))


def portable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, else another one with the same message."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # an error's own pickling can raise anything
        known = isinstance(error, GateauError)
        return error.reworded(str(error)) if known else RuntimeError(f"{type(error).__name__}: {error}")


def _placed(error: BaseException) -> BaseException:
    # A message for users names its place already.
    if not isinstance(error, GateauError):
        error.add_note(f"(on {socket.gethostname()})")
    return error
