"""`python killed_run.py POINT NUMBER run --config FILE`: the command line, which kills its whole process group.

POINT is `row` (after the NUMBERth scored sample, saved or not), `table` (after the NUMBERth table, before its event)
or `seconds` (NUMBER seconds after the start of the command). `interrupt` is like `row`, and a SIGINT to the group.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


def die() -> None:
    """As `kill -9 -GROUP` would do it: no handler, no cleanup."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def interrupt() -> None:
    """As Ctrl-C in a terminal does it."""
    os.killpg(os.getpgrp(), signal.SIGINT)


def after_calls(owner: Any, name: str, number: int, end: Callable[[], None] = die) -> None:
    """Lets the NUMBERth call of a method be the last thing that this process group does."""
    original = getattr(owner, name)
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        result = original(*arguments, **options)
        calls += 1
        if calls == number:
            end()
        return result

    setattr(owner, name, counted)


def main(point: str, number: str, arguments: list[str]) -> None:
    """Patches, then runs the command."""
    from gateau_dagster.cli import main as gateau
    from gateau_dagster.execution import row_checkpoints as partial
    from gateau_dagster.storage.store import Store

    if point == "row":
        partial.GROUP_ROWS = 3
        after_calls(partial.RowCheckpoints, "add", int(number))
    elif point == "interrupt":
        after_calls(partial.RowCheckpoints, "add", int(number), interrupt)
    elif point == "table":
        after_calls(Store, "write", int(number))
    else:
        timer = threading.Timer(float(number), die)
        timer.daemon = True
        timer.start()
    sys.argv = ["gateau", *arguments]
    gateau()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
