"""Fence the commits of a store: a run that lost the lease writes nothing more, however long it was stopped.

A commit has three steps: create a temporary that names the lease, prove the lease, commit. On a disk the temporary is a
file beside its target and the commit a rename. On S3 a small object is put below `_commits/`, and the server copies it
to its place. A large one is an upload in parts, named by a note below `_commits/`, and is completed.

A take-over has three steps, too: create the next lease, remove the old one, remove what names the old one (`sweep`). So
there is no window between a proof and its commit. A proof that succeeds precedes the removal of the lease. Its
temporary is then older than the sweep, which removes it. The late rename, copy or completion has nothing to commit and
fails. An earlier commit precedes the new owner's first read. No clock takes part.

A removal has no such step. It proves the lease just before the system call, file by file on a disk, and removes by name
what it listed before. That leaves a window of one call, in which a stopped process may still remove a file of its
successor.

The owner's tokens are kept per process; its children inherit them in their environment, and other processes adopt them.
A process without tokens, such as a library user's, writes without proofs.
"""

# What it costs, and when another way is better:
#
# - A commit on a disk reads one small file more. A small object on S3 takes four requests instead of one: note, proof,
#   copy, removal. Tables are few and large, so this is lost in the time of a shard.
# - A store that refuses old numbers by itself (a fencing token, as Kleppmann calls it) would need no proof. Neither a
#   disk nor S3 compares numbers, so the take-over removes what the old owner could still commit.
# - Conditional writes (`If-Match`) would do for one object on S3. A disk has no rename under a condition, and two
#   protocols would have to be right instead of one.
# - Without other writers the fence is not needed: outside a lease, nothing is proved.

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field

from gateau_dagster.errors import GateauError

LEASES = "_lease"
COMMITS = "_commits"
_VARIABLE = "GATEAU_LEASES"
_MARK = "lease-"
_SECONDS_BETWEEN_LOOKS = 5.0
_READS = 3
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux: counts while the machine sleeps


class LeaseLostError(GateauError):
    """Another run has taken over the store: this one writes nothing more."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A lease that its owner can prove: its number, and its id."""

    root: str
    number: int
    lease: str

    @property
    def name(self) -> str:
        """Return the lease's file, relative to the root."""
        return lease_name(self.number)


@dataclass(kw_only=True)
class _Process:
    """The tokens of this process, and why it lost one of them; empty while it has all."""

    tokens: list[Token] = field(default_factory=list)
    loss: str = ""
    looked: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


def lease_name(number: int) -> str:
    """Return the file of a lease, relative to the root."""
    return f"{LEASES}/{number:08d}.json"


def _parsed(text: str) -> list[Token]:
    return [Token(**each) for each in json.loads(text)] if text else []


# Read once, at import: a child process has its tokens before any of its code commits something.
_process = _Process(tokens=_parsed(os.environ.get(_VARIABLE, "")))
_instead: ContextVar[tuple[Token, ...] | None] = ContextVar("instead", default=None)


def exported() -> str:
    """Return the tokens of this process as text, for a process that does not inherit its environment."""
    return json.dumps([asdict(token) for token in _process.tokens]) if _process.tokens else ""


def adopt(text: str) -> None:
    """Adopt the tokens that `exported` returned in the process that this one works for."""
    if text:
        _process.tokens = _parsed(text)


@contextmanager
def holding(token: Token, *, alone: bool) -> Iterator[None]:
    """Prove this token at each commit of this process and of its children within the block.

    Args:
        token: to be proved.
        alone: whether it replaces the tokens of the process; otherwise it joins them.
    """
    before, variable = _process.tokens, os.environ.get(_VARIABLE)
    _process.tokens = [*([] if alone else before), token]
    # In the environment, because children of children get them, too: training starts processes that start others.
    os.environ[_VARIABLE] = exported()
    try:
        yield
    finally:
        _process.tokens = before
        os.environ.pop(_VARIABLE) if variable is None else os.environ.update({_VARIABLE: variable})


@contextmanager
def acting_as(*tokens: Token) -> Iterator[None]:
    """Make this thread prove these tokens instead of those of the process, within the block."""
    # A context variable, so that it holds for one thread: the one that renews proves its lease only, and a take-over
    # proves none.
    earlier = _instead.set(tokens)
    try:
        yield
    finally:
        _instead.reset(earlier)


def lost(message: str) -> None:
    """Record that this process lost its lease, for its last line."""
    _process.loss = message


def loss() -> str:
    """Return why this process lost its lease; empty while it has it."""
    return _process.loss


def loss_message(root: str, taken_by: str = "another run") -> str:
    """Return the last line of a run that lost its lease."""
    return (
        f"This run did not renew its lease of {root} in time: the machine was asleep, or the store was unreachable. "
        f"{taken_by} has taken over. All results computed before are kept. Run again when the other run has ended."
    )


class Fence:
    """The proof of the tokens that count for one store; see the module.

    Args:
        root: of the store.
        read: returns the content of a file of the store; raises FileNotFoundError if it is missing.
    """

    def __init__(self, root: str, read: Callable[[str], bytes]) -> None:
        instead = _instead.get()
        self._root, self._read = root, read
        self.tokens = [token for token in (_process.tokens if instead is None else instead) if token.root == root]

    @property
    def mark(self) -> str:
        """Return the numbers of the leases, as in the names of temporaries; empty if there is nothing to prove."""
        return _MARK + "-".join(str(token.number) for token in self.tokens) if self.tokens else ""

    def prove(self) -> None:
        """Check that no other run has taken over.

        Raises:
            LeaseLostError: another run has taken over.
            GateauError, TransientError: the store cannot be read.
        """
        for token in self.tokens:
            try:
                data = self._patiently(token.name)
            # A release keeps the file, so a missing one means that a take-over removed it.
            except FileNotFoundError:
                raise LeaseLostError("storage.lease_lost", loss_message(self._root)) from None
            # The id decides, not the number: see `lease` on numbers that two owners took.
            if token.lease.encode() not in data and _is_other(data):
                raise LeaseLostError("storage.lease_lost", loss_message(self._root))

    def _patiently(self, name: str) -> bytes:
        # Patient with stale handles only. Any other failure is no proof, so the commit fails.
        for _ in range(_READS):
            try:
                return self._read(name)
            except OSError as error:  # the owner on another machine replaced it between the steps of a network disk
                if error.errno != errno.ESTALE:
                    raise
        return self._read(name)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Prove the lease before the commit in the block, and again after an OSError.

        A take-over may have swept the temporary, and servers differ in their answers to a commit of a removed object.

        Raises:
            LeaseLostError: another run has taken over.
        """
        self.prove()
        try:
            yield
        except OSError:
            self.prove()
            raise


def _is_other(data: bytes) -> bool:
    """Return whether the lease belongs to another owner; a damaged one belongs to its number's, who writes it again."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("lease"), str)


def roots_to_prove() -> list[str]:
    """Return the stores whose leases this process has, every few seconds; else none. For work outside a store."""
    now = time.clock_gettime(_CLOCK)
    with _process.lock:
        # A look is a read of the store. Work such as training asks after each step, which may take less than a read.
        if now - _process.looked < _SECONDS_BETWEEN_LOOKS:
            return []
        _process.looked = now
    return sorted({token.root for token in _process.tokens})


def numbers_in(name: str) -> Sequence[int]:
    """Return the leases that a temporary's name contains; empty for any other name."""
    # A name that only looks like ours is left alone: the sweep removes what these numbers name.
    for part in name.split("."):
        numbers = part.removeprefix(_MARK).split("-") if part.startswith(_MARK) else []
        if numbers and all(number.isdecimal() for number in numbers):
            return [int(number) for number in numbers]
    return []
