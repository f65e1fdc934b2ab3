"""End processes together with all their descendants."""

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def signal_children(number: int) -> None:
    """Send a signal to all descendants of this process."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # the latter: it became another user's
            # multiprocessing's own helper cleans up after this process, and ends with it.
            if not any("multiprocessing.resource_tracker" in word for word in child.cmdline()):
                child.send_signal(number)


def end_tree(process: subprocess.Popen[bytes], *, patience: float) -> None:
    """End a child process and all its descendants by SIGTERM; kill them after `patience` seconds.

    A child that has ended already is left alone: its id may be reused.
    """
    import psutil

    if process.poll() is not None:
        return
    root = psutil.Process(process.pid)
    family = [root, *root.children(recursive=True)]
    _signal(family, signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=patience)
    _signal(left, signal.SIGKILL)
    process.wait()


def _signal(processes: "Sequence[psutil.Process]", number: int) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)
