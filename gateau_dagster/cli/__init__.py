"""Provide the `gateau` command."""

import atexit
import gc
import os
import signal
import sys

from gateau_dagster.execution import collect_rarely
from gateau_dagster.execution.interruption import ends_at_once

_ERROR_STREAM = 2
# How often an idle thread of torch looks for work before it sleeps; GNU OpenMP's default is 300,000. Beside other busy
# processes the waiting threads take the cores from those that work: a training run was 10 times slower.
_SPINS = "3000"


def main() -> None:
    """Run the command. Slow imports come last, so that an interrupt during them is reported in one line."""
    _open_streams()
    collect_rarely()
    atexit.register(gc.freeze)  # the collections while Python shuts down take a fifth of a second
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(
            "GOMP_SPINCOUNT", _SPINS
        )  # read when torch is imported, here or in a process that we start
    try:
        with ends_at_once():
            from gateau_dagster.cli.commands import command_line

            command_line()
    finally:
        # Otherwise an interrupt while Python shuts down would print a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def _open_streams() -> None:
    """Open closed standard streams (`>&-`) on the null device; else output would go to the next opened file."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _ERROR_STREAM:
        os.set_inheritable(number, True)
    os.close(number)
    # Python sets closed streams to None; the replacements live as long as the process.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
