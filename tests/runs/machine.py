"""What looks like another machine: a host name, processes and a file system of its own.

`python machine.py NAME FILE gateau-arguments…` is the command line on it, or on this machine where NAME is empty, with
leases that run out in seconds. With a FILE it touches that one after the fifth scored sample and stays there, alive.
With `STOP_AT_COMMIT="NUMBER FILE"` in its environment it touches that file just before its NUMBERth commit to a store,
its lease proved already, and waits there for a second, in which it may be stopped.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NAMESPACES = ["unshare", "-r", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
RENEW_SECONDS, EXPIRES_SECONDS, WATCH_SECONDS = 0.5, 4.0, 2.0
COMMIT = "STOP_AT_COMMIT"
WITHOUT = "needs namespaces of its own: root, or user namespaces"


def can_be_another_machine() -> bool:
    """Whether a process can have its own host name and its own processes: as root, or by user namespaces."""
    try:
        return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def gateau_here(*arguments: str, stay_file: Path | None = None, name: str = "") -> list[str]:
    """The command on this machine."""
    return [sys.executable, "-m", "tests.runs.machine", name, str(stay_file or ""), *arguments]


def gateau_on(name: str, *arguments: str, without: Path, stay_file: Path | None = None) -> list[str]:
    """The command on a machine of this name, from which the folder `without` cannot be seen."""
    command = gateau_here(*arguments, stay_file=stay_file, name=name)
    return [*NAMESPACES, "sh", "-c", f"mount -t tmpfs none '{without}' && exec \"$@\"", "sh", *command]


def stay(file: Path) -> None:
    """Lets the fifth scored sample be the last one for now."""
    from gateau_dagster.execution import row_checkpoints
    from tests.runs.killed_run import after_calls

    def wait() -> None:
        row_checkpoints.save_all_rows()
        file.touch()
        time.sleep(600)

    after_calls(row_checkpoints.RowCheckpoints, "add", 5, wait)


def stop_at_commit(number: int, file: Path) -> None:
    """Counts in each process by itself; the first that comes to the number is the one."""
    from gateau_dagster.storage import fence

    prove, calls = fence.Fence.prove, 0

    def proved(self: Any) -> None:
        nonlocal calls
        prove(self)
        if threading.current_thread().name == "lease":
            return
        calls += 1
        if calls == number and not file.exists():
            file.touch()
            time.sleep(1.0)

    fence.Fence.prove = proved


def main(name: str, stay_file: str, arguments: list[str]) -> None:
    """Patches, then runs the command."""
    from gateau_dagster.cli import main as gateau
    from gateau_dagster.storage import lease

    if name:
        socket.sethostname(name)
    lease.RENEW_SECONDS, lease.EXPIRES_SECONDS = RENEW_SECONDS, EXPIRES_SECONDS
    lease.WATCH_SECONDS = WATCH_SECONDS
    if at := os.environ.get(COMMIT):
        number, file = at.split(" ", maxsplit=1)
        stop_at_commit(int(number), Path(file))
    if stay_file:
        stay(Path(stay_file))
    sys.argv = ["gateau", *arguments]
    gateau()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
