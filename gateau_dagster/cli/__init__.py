"""The `gateau` command."""

import atexit
import signal

from gateau_dagster.execution.interruption import ends_at_once


def main() -> None:
    """Entry point. What takes time is imported only when an interrupt is one line already."""
    try:
        with ends_at_once():
            from gateau_dagster.cli.commands import command_line

            command_line()
    finally:
        # An interrupt while Python takes itself apart would be a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
