"""Identify processes uniquely, for locks and for runs that outlive the process they name.

The kernel counts a process's start in ticks since the boot. Its wall-clock start, as psutil returns it, moves with
every step of the clock, and process ids are reused.
"""

import hashlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from gateau_dagster.errors import GateauError

State = Literal["alive", "gone", "unknown"]

_PROC = Path("/proc")
_FIELDS = 6
_LARGEST_PID = 2**31 - 1
_TICKS_WITHOUT_PROC = 100  # per second
# The kernel's fixed number of the initial namespace, outside containers.
_FIRST_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process.

    host: its host's name. boot_id: of the kernel, new after each start of the machine; containers share their
    machine's. pid_namespace: where `pid` counts; each container has its own. start_ticks: since the boot. machine: a
    digest of the machine's id, which survives a restart; empty in a container, whose image may contain one.

    On a system without /proc, boot_id, pid_namespace and machine are empty.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    machine: str = ""

    @classmethod
    def of(cls, pid: int | None = None) -> "ProcessIdentity":
        """Return the identity of a process that is visible from here; default: this one.

        Raises:
            ProcessLookupError: the process does not exist, or is not visible.
            GateauError: this process does not see itself, without a readable /proc.
        """
        own, pid = pid is None, os.getpid() if pid is None else pid
        found = _status_and_start(pid)
        if found is None:
            if own:
                raise GateauError(
                    "machine.proc",
                    "/proc cannot be read. Without it, a working run looks like one that has ended. Mount it (mount -t "
                    "proc proc /proc), or start the container with it.",
                )
            raise ProcessLookupError(f"there is no process {pid}")
        boot, namespace = _boot_id(), _pid_namespace()
        return cls(socket.gethostname(), boot, namespace, pid, found[1], _machine())

    def to_text(self) -> str:
        """Return the identity as one line."""
        where = (self.boot_id, self.pid_namespace, self.machine)
        return "|".join((self.host, str(self.pid), str(self.start_ticks), *where))

    @classmethod
    def from_text(cls, text: str) -> "ProcessIdentity":
        """Return the identity from the output of `to_text`.

        Raises:
            ValueError: the text is no identity.
        """
        parts = text.rsplit("|", _FIELDS - 1)
        if len(parts) != _FIELDS:
            raise ValueError(f"not a process: {text!r}")
        host, pid, ticks, boot, namespace, machine = parts
        if not 0 < int(pid) <= _LARGEST_PID:  # os.kill accepts no larger ids, and takes others for process groups
            raise ValueError(f"not a process: {text!r}")
        return cls(host, boot, namespace, int(pid), int(ticks), machine)

    def state(self) -> State:
        """Return whether the process runs; "unknown" if that is not visible from here. A zombie is gone."""
        # "unknown" is the answer where nothing can be seen. Taken for gone, a live run on another machine would lose
        # its store. The lease then decides by time.
        if self.boot_id != _boot_id():
            restarted = self.machine != "" and (self.host, self.machine) == (socket.gethostname(), _machine())
            return "gone" if restarted else "unknown"
        if not self.boot_id and self.host != socket.gethostname():
            return "unknown"
        # Two containers of one machine share the boot id. A namespace's number is reused only after it has ended.
        return self._seen() if self.pid_namespace == _pid_namespace() else "unknown"

    def _seen(self) -> State:
        try:
            found = _status_and_start(self.pid)
        except PermissionError:
            return "unknown"
        if found is not None:
            status, start = found
            return "alive" if start == self.start_ticks and status not in "ZX" else "gone"
        return "unknown" if _answers(self.pid) else "gone"


def _status_and_start(pid: int) -> tuple[str, int] | None:
    """Return the state's letter and the start in ticks since the boot; None if the process is missing or hidden."""
    if not (_PROC / "self" / "stat").exists():
        return _without_proc(pid)
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in brackets, and may itself contain spaces and brackets.
    fields = stat.rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[19])


def _without_proc(pid: int) -> tuple[str, int] | None:
    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return "Z" if ended else "R", round(process.create_time() * _TICKS_WITHOUT_PROC)
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error
    except psutil.NoSuchProcess:
        return None


def _answers(pid: int) -> bool:
    """Return whether a process exists that /proc hides, such as another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    return _line(_PROC / "sys/kernel/random/boot_id")


def _machine() -> str:
    found = _line(Path("/etc/machine-id")) if _pid_namespace() == _FIRST_NAMESPACE else ""
    return hashlib.sha256(f"gateau {found}".encode()).hexdigest()[:16] if found else ""


def _pid_namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:  # no such system
        return ""


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:  # no such system
        return ""
