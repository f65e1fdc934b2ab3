"""Progress across processes: each step writes what it has done to a small file, the command line reads them all."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gateau_dagster.progress import Progress

_SECONDS_BETWEEN_WRITES = 0.2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a step has done; `started` is a time.time()."""

    step: str
    done: float
    total: float | None
    unit: str
    note: str
    started: float


class ProgressBoard:
    """The files of one run: `<folder>/<step>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def step(self, name: str) -> Iterator[Progress]:
        """The progress of one step; its file is gone when the step ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / f"{name.replace('/', '__')}.json"
        started, written = time.time(), 0.0

        def report(done: float, total: float | None, unit: str, note: str = "") -> None:
            nonlocal written
            if time.monotonic() - written < _SECONDS_BETWEEN_WRITES and done != total:
                return
            written = time.monotonic()
            entry = Entry(step=name, done=done, total=total, unit=unit, note=note, started=started)
            temporary = file.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(asdict(entry)))
            temporary.replace(file)

        try:
            report(0, None, "")
            yield report
        finally:
            file.unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """The steps that are running now."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                found.append(Entry(**json.loads(file.read_text())))
            except FileNotFoundError:
                continue  # the step ended between the listing and the reading
        return found

    def remove(self) -> None:
        """Called when the run is over."""
        for file in self._folder.glob("*"):
            file.unlink(missing_ok=True)
        if self._folder.is_dir():
            self._folder.rmdir()
