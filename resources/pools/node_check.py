"""Check whether another machine may score, and find the model there: it needs the same store, code and packages."""

import fcntl
import hashlib
import os
import platform
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_digest import folder_digest
from gateau_dagster.pipeline.loadable import Placed, fetched_model
from gateau_dagster.storage import Store
from gateau_dagster.storage.files import Files

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
    """Yield what this machine has, with a marker in the store during the block.

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
    """Lock the folder: a machine's workers fetch into it one at a time."""
    with (scratch / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
