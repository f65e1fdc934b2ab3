"""Locate a configured model on another machine, and check that it is the one of the run."""

import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_digest import folder_digest
from gateau_dagster.pipeline.loadable import Placed, fetched_model
from gateau_dagster.storage import Store


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
