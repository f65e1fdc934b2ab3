"""Check whether another machine may score: it needs the same store, code and packages, and a GPU."""

import hashlib
import platform
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import gateau_dagster
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.files import Files

_FOLDER = "_workers"
# Packages that determine results; of torch the release counts, not the build for a CPU or a GPU.
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "polars", "numpy")
_SOURCES = ("gateau_dagster", "resources")


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
            f"its gateau-dagster is not the one that began this run ({version('gateau-dagster')} there, with other "
            "sources). Install the same on all machines"
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
    return (
        f"its worker was given a GPU, but torch finds none ({built}). Set execution.ray.gpus to 0 to score on the CPU"
    )


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
    total, root = hashlib.sha256(), Path(gateau_dagster.__file__).parent.parent
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*.py")):
            total.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return total.hexdigest()
