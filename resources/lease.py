"""Hold the lease of `gateau_dagster/storage/lease.py` for a configuration: one owner per store."""

import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, demo_place
from gateau_dagster.execution.interruption import at_end
from gateau_dagster.storage import fence
from gateau_dagster.storage.files import Files
from gateau_dagster.storage.lease import EXPIRES_SECONDS, FOLDER, Holder, Lease
from gateau_dagster.storage.process_identity import ProcessIdentity


def holder_of(config: Config) -> str | None:
    """Describe who holds a lease of the store; return None if nobody visible from here does.

    Raises:
        GateauError, TransientError: the store cannot be read.
    """
    files = Files(config.located_root)
    for name in files.names(FOLDER):
        try:
            holder = Holder.from_bytes(files.read(f"{FOLDER}/{name}"))
        except FileNotFoundError:  # just removed
            continue
        if holder is not None and _lives(holder):
            return holder.described()
    return None


def _lives(holder: Holder) -> bool:
    state = ProcessIdentity.from_text(holder.process).state()
    if holder.released or state == "gone":
        return False
    return state == "alive" or abs(time.time() - holder.renewed_at) <= EXPIRES_SECONDS


_ID = f"{FOLDER}/id"
_ID_FORM = re.compile(rb"[0-9a-f]{32}")
# The parties that hold a lease in this process, by party and store: nested steps need no second one.
_held: set[str] = set()


def party(config: Config, config_file: str) -> str:
    """Return the party of a configuration: its runs share a store, from the UI and the command line, on any machine.

    It contains an id in the work folder, since two machines may each have a configuration at the same path.

    Raises:
        GateauError: the work folder cannot be written, or its id is damaged.
    """
    files = Files(str(config.work_folder))
    if not files.exists("id"):
        files.create("id", uuid.uuid4().hex.encode())
    own = _read_id(files, "id")
    return f"{own} {config.work_folder.absolute() / Path(config_file).name} on {config.located_root}"


def store_id(config: Config) -> str:
    """Return the id of the store, equal on all machines that reach it; a copy elsewhere has another one.

    Raises:
        GateauError, TransientError: the store cannot be written, or its id is damaged.
    """
    found = known_store_id(config)
    if found is None:
        Files(config.located_root).create(_ID, uuid.uuid4().hex.encode())
        found = known_store_id(config)
    assert found is not None
    return found


def known_store_id(config: Config) -> str | None:
    """Return `store_id`, or None if nothing has ever run on the store, so that reading creates no files.

    Raises:
        GateauError, TransientError: for the reasons of `store_id`.
    """
    files = Files(config.located_root)
    if not files.exists(_ID):
        return None
    own = _read_id(files, _ID)
    return f"{own} {Path(files.address(_ID)).stat().st_ino}" if files.is_local else f"{own} {files.root}"


def _read_id(files: Files, name: str) -> str:
    data = files.read(name)
    if _ID_FORM.fullmatch(data) is None:
        raise GateauError(
            "storage.id_damaged",
            f"{files.address(name)} is damaged: expected 32 hex digits. Put a copy back, or remove it while "
            "nothing runs on this store: the next run writes a new one.",
        )
    return data.decode()


def whole_store_lease(config: Config, work: str, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Hold the store within the block against every run, those of this configuration included.

    Args:
        config: the configuration.
        work: what is done, for the message to a run that has to wait.
        say: receives messages about waiting.

    Raises:
        GateauError: a run has the store; the message names it.
        TransientError: the server does not answer.
    """
    return _leased(config, f"{work} {uuid.uuid4().hex}", work, exclusive=True, say=say)


@contextmanager
def store_lease(config: Config, config_file: str, *, exclusive: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the store within the block; each commit of this process and its children proves the lease.

    Args:
        config_file: path, or `demo`; see `configuration_name`.
        exclusive: for a whole refresh; otherwise for a step of a run, which shares the store with its party.
        say: receives messages about waiting.

    Raises:
        GateauError: another run has the store; the message names it.
        LeaseLostError: the lease was lost to another run.
        TransientError: the server does not answer.
    """
    whose = party(config, config_file)
    if whose in _held and not exclusive:
        yield
        return
    shown = f"the embedded demo in {config.folder}" if demo_place(config_file) else config_file
    with _leased(config, whose, shown, exclusive=exclusive, say=say):
        _held.add(whose)
        try:
            yield
        finally:
            _held.discard(whose)


@contextmanager
def _leased(config: Config, whose: str, shown: str, *, exclusive: bool, say: Callable[[str], None]) -> Iterator[None]:
    files = Files(config.located_root)
    with (
        Lease(files, party=whose, exclusive=exclusive, configuration=shown, say=say) as lease,
        at_end(lease.release, "the lease of the store runs out by itself"),
        fence.holding(lease.token, alone=exclusive),
    ):
        yield
