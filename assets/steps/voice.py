"""Lines of progress in a run's log: what a step reports, at most so often; and at least so often that it is at work."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LINES = 10.0
_LONGEST_SILENCE = 14.0


class Voice:
    """Says what a step reports, some of it; and where it reports nothing, that it is still at work.

    every: seconds between lines while there are reports. silence: the most without a line.
    """

    def __init__(
        self, say: Callable[[str], object], *, every: float = _SECONDS_BETWEEN_LINES, silence: float = _LONGEST_SILENCE
    ) -> None:
        self._say, self._every, self._silence = say, every, silence
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._started = self._said = self._heard = time.monotonic()
        self._report: tuple[float, float | None, str, str, float | None] | None = None

    def hear(self, done: float, total: float | None, unit: str, note: str, left: float | None) -> None:
        """A report of the step."""
        with self._lock:
            self._report, self._heard = (done, total, unit, note, left), time.monotonic()
            if self._heard - self._said >= self._every:
                self._speak()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Within the block, a thread breaks the silence."""
        thread = threading.Thread(target=self._break_silence, daemon=True, name="step-voice")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _break_silence(self) -> None:
        while not self._ended.wait(max(0.01, self._said + self._silence - time.monotonic())):
            with self._lock:
                if time.monotonic() - self._said >= self._silence:
                    self._speak()

    def _speak(self) -> None:
        now = time.monotonic()
        if self._report is None:
            line = f"at work for {now - self._started:,.0f} s"
        else:
            done, total, unit, note, left = self._report
            line = progress_line(done, total, unit, note, now - self._started, left)
            silent = now - self._heard
            line += f"; the last news is {silent:,.0f} s old" if silent >= self._every else ""
        self._say(line)
        self._said = now


def progress_line(
    done: float, total: float | None, unit: str, note: str, seconds: float, left: float | None = None
) -> str:
    """`12/63 samples (19 %), 3.1 samples/s, 16 s left`; with `left` the note is taken to hold the rates."""
    rate = done / seconds if seconds > 0 else 0.0
    share = f"/{total:,.0f} {unit} ({done / total:.0%})" if total else f" {unit}"
    rates = f", {rate:,.1f} {unit}/s" if left is None else ""
    if left is None and total and rate:
        left = (total - done) / rate
    rest = f", {left:,.0f} s left" if left is not None else ""
    return f"{done:,.0f}{share}{rates}{rest}{', ' + note if note else ''}"
