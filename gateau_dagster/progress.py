"""Report progress of long work: the callback for methods, and the board that shows a run to other processes."""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol


class Progress(Protocol):
    """A callback for finished work; it is called often, so implementations throttle themselves."""

    def __call__(self, done: float, total: float | None, unit: str, note: str = "") -> None:
        """Report that `done` of `total` `unit`s (samples, tokens, steps) are finished; `total` is None if unknown."""
        ...


class TimedProgress(Protocol):
    """A progress callback that also accepts the time left, if units are too uneven to derive it from their count."""

    def __call__(
        self, done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None
    ) -> None:
        """Report progress. `left`: seconds, or UNKNOWN; None if `done` and `total` suffice to derive it."""
        ...


UNKNOWN = math.inf
"""A time left that nothing tells yet."""


def rate_in_words(count: float, seconds: float, unit: str) -> str:
    """Return `3.1 samples/s`, or `12 s per sample` where fewer than one in ten seconds are done; "" for no rate.

    unit: plural.
    """
    if not count or seconds <= 0:
        return ""
    rate = count / seconds
    return f"{rate:,.1f} {unit}/s" if rate >= 0.1 else f"{seconds / count:,.0f} s per {unit.removesuffix('s')}"


def silent(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
    """Ignore progress: the default callback."""
    del done, total, unit, note, left


_SECONDS_BETWEEN_WRITES = 0.2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The progress of a step; `started`, `reported` and `ended` are a time.time(), `ended` 0 while it runs.

    left: seconds from `reported` until the end, if the step knows better than `done` and `total` suggest.
    """

    step: str
    done: float
    total: float | None
    unit: str
    note: str
    started: float
    reported: float = 0.0
    ended: float = 0.0
    left: float | None = None

    @property
    def left_now(self) -> float | None:
        """Return the seconds from now until the end, which count down between reports; None or UNKNOWN as `left`."""
        return self.left if self.left is None else max(0.0, self.left - (time.time() - self.reported))


class ProgressBoard:
    """The files of one run: `<folder>/<step>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def step(self, name: str) -> Iterator[TimedProgress]:
        """Yield the progress callback of one step; its result stays on the board until the board is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name.replace('/', '__')}.json"
        started, written = time.time(), 0.0

        def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
            nonlocal written, last
            last = Entry(
                step=name,
                done=done,
                total=total,
                unit=unit,
                note=note,
                started=started,
                reported=time.time(),
                left=left,
            )
            if time.monotonic() - written >= _SECONDS_BETWEEN_WRITES or done == total:
                written = time.monotonic()
                _write(file, last)

        last = Entry(step=name, done=0, total=None, unit="", note="", started=started)
        _write(file, last)
        yield report
        _write(file, replace(last, ended=time.time()))

    def entries(self) -> list[Entry]:
        """Return the steps that are running, or have ended well, in the order of their start."""
        found = [entry for entry in map(_read, self._folder.glob("*.json")) if entry is not None]
        return sorted(found, key=lambda entry: entry.started)


def _read(file: Path) -> Entry | None:
    try:
        return Entry(**json.loads(file.read_text()))
    except FileNotFoundError:  # a new run has just removed the old board
        return None


def _write(file: Path, entry: Entry) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}.tmp")
    temporary.write_text(json.dumps(asdict(entry)))
    temporary.replace(file)
