"""Parts of a long run, each on its own: what fails or has no time left is recorded, and the rest goes on."""

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common_measure import say, write_json


class Parts:
    """Runs the parts and writes all results after each."""

    def __init__(self, *, file: Path, budget_seconds: float, tiny: bool) -> None:
        self._file = file
        self._started = time.monotonic()
        self._budget = budget_seconds
        self._tiny = tiny
        self.results: dict[str, dict[str, Any]] = {}

    def allow(self, seconds: float) -> None:
        """No part from here on starts that may outlast so many seconds, nor the whole budget."""
        self._budget = min(self._budget, time.monotonic() - self._started + seconds)

    def run(self, name: str, at_most_seconds: float, work: Callable[[], dict[str, Any]]) -> None:
        """One part: its result, or `error` or `skipped` with the reason; and `part_seconds`, what it took in all."""
        if torch.cuda.is_available():
            # Whatever the part before held, also by a failed call's frames, is free for this one.
            gc.collect()
            torch.cuda.empty_cache()
        started = time.monotonic()
        left = self._budget - (started - self._started)
        say(f"{name} ({left:.0f} s left)")
        if left < at_most_seconds and not self._tiny:
            self.results[name] = {"skipped": f"{left:.0f} s were left, it may take {at_most_seconds:.0f}"}
        else:
            self.results[name] = _guarded(work)
        self.results[name]["part_seconds"] = round(time.monotonic() - started, 2)
        for key in ("error", "skipped", "out_of_memory", "left_out"):
            if key in self.results[name]:
                say(f"  {key}: {self.results[name][key]}")
        self._write([])

    def finish(self, lines: Sequence[str]) -> None:
        """Adds the conclusions."""
        self._write(lines)
        say(f"{time.monotonic() - self._started:.0f} s in all; wrote {self._file.name}")

    def _write(self, lines: Sequence[str]) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        content = {"tiny": self._tiny, "seconds": seconds, "parts": self.results, "conclusions": list(lines)}
        write_json(self._file, content, announce=False)


def _guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # out of memory, a kernel that is missing: the figure is absent, the run goes on
        return {"error": f"{type(error).__name__}: {first_line(error)}"}


def first_line(error: BaseException) -> str:
    """Of what it says, no more than 300 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")[:300]
