"""Progress of long work, reported by the methods without knowing who shows it."""

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


def silent(done: float, total: float | None, unit: str, note: str = "") -> None:
    """The progress of work that nobody watches."""
    del done, total, unit, note
