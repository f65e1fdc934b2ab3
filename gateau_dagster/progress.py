"""Progress of long work: how a method reports it, and the board where a run shows it to other processes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """Receives what has been done so far; called often, so implementations throttle themselves."""

    def __call__(self, done: float, total: float | None, unit: str, note: str = "") -> None:
        """`done` of `total` `unit`s (samples, tokens, steps) are finished; `total` is None when it is not known."""
        ...


class TimedProgress(Protocol):
    """A progress that can also be told how long the rest takes, where units are too uneven to tell from their count."""

    def __call__(
        self, done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None
    ) -> None:
        """`left`: seconds; None where `done` and `total` say it well enough."""
        ...


def silent(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
    """The progress of work that nobody watches."""
    del done, total, unit, note, left


_SECONDS_BETWEEN_WRITES = 0.2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a step has done; `started` and `ended` are a time.time(), `ended` 0 while it runs.

    left: seconds that the rest takes, where the step knows better than `done` and `total` do.
    """

    step: str
    done: float
    total: float | None
    unit: str
    note: str
    started: float
    ended: float = 0.0
    left: float | None = None


class ProgressBoard:
    """The files of one run: `<folder>/<step>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def step(self, name: str) -> Iterator[TimedProgress]:
        """The progress of one step; how it ended stays on the board until someone takes it down."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name.replace('/', '__')}.json"
        started, written = time.time(), 0.0

        def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
            nonlocal written, last
            last = Entry(step=name, done=done, total=total, unit=unit, note=note, started=started, left=left)
            if time.monotonic() - written >= _SECONDS_BETWEEN_WRITES or done == total:
                written = time.monotonic()
                _write(file, last)

        last = Entry(step=name, done=0, total=None, unit="", note="", started=started)
        _write(file, last)
        yield report
        _write(file, replace(last, ended=time.time()))

    def entries(self) -> list[Entry]:
        """The steps that are running, or have ended well, in the order in which they began."""
        found = [entry for entry in map(_read, self._folder.glob("*.json")) if entry is not None]
        return sorted(found, key=lambda entry: entry.started)


def _read(file: Path) -> Entry | None:
    try:
        return Entry(**json.loads(file.read_text()))
    except FileNotFoundError:  # a new run has just taken the old board down
        return None


def _write(file: Path, entry: Entry) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_text(json.dumps(asdict(entry)))
    temporary.replace(file)
