"""A worker that scores as any other does, until the driver has heard of its first sample: then it is killed."""

import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from gateau_dagster.execution.shard_scorer import ShardScorer
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow

_PATIENCE = 120.0


class KilledOnce(dict[str, Any]):
    """An effort (of `TableWork.stamp`) that has the first worker that begins with it killed; notes: an empty folder."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def __reduce__(self) -> tuple[Any, ...]:
        return _install, (str(self.notes),)

    def hear(self) -> None:
        """The driver knows of a sample that was scored."""
        (self.notes / "heard").touch()

    @property
    def killed(self) -> int:
        """The process."""
        return int((self.notes / "killed").read_text())


def _install(notes: str) -> dict[str, Any]:
    """In the worker."""
    score = ShardScorer._outcomes

    def until_heard(self: ShardScorer, requests: Iterator[RequestedRow]) -> Generator[Outcomes]:
        scored = score(self, requests)
        yield next(scored)
        if _is_first(Path(notes, "killed")):
            deadline = time.monotonic() + _PATIENCE
            while not Path(notes, "heard").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        yield from scored

    if score.__name__ != until_heard.__name__:  # it comes with each piece
        ShardScorer._outcomes = until_heard  # type: ignore[method-assign]
    return {}


def _is_first(note: Path) -> bool:
    try:
        with note.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True
