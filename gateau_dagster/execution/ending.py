"""What is to be done when the process is told to end, and where its main thread then waits for the end."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

Call = Callable[[], object]
Listed = TypeVar("Listed")

_SIGNAL_ON_ITS_WAY = 0.5  # seconds


@dataclass
class Ending:
    """Of this process.

    requested: it has been told to end. unwound: its main thread has ended what it was doing. watched: some thread reads
    the signals. goes_on: a main thread that has unwound ends by itself. at_request, at_end: see the functions.
    """

    requested: threading.Event = field(default_factory=threading.Event)
    unwound: threading.Event = field(default_factory=threading.Event)
    watched: bool = False
    goes_on: bool = False
    at_request: list[Call] = field(default_factory=list)
    at_end: list[tuple[Call, str | None]] = field(default_factory=list)


ENDING = Ending()


@contextmanager
def at_request(call: Call) -> Iterator[None]:
    """While the block works: a thread calls this as soon as the process is told to end. The block is given time.

    What must be done is for `at_end`: nobody hears of a failure here.
    """
    with _listed(call, ENDING.at_request):
        yield


@contextmanager
def at_end(call: Call, if_not: str | None = None) -> Iterator[None]:
    """While the block works: a thread calls this just before the process ends, the innermost first.

    Args:
        if_not: what the user is told where it fails or takes too long; None: nothing.
    """
    with _listed((call, if_not), ENDING.at_end):
        yield


@contextmanager
def _listed(call: Listed, calls: list[Listed]) -> Iterator[None]:
    calls.append(call)
    try:
        yield
    finally:
        hold_if_requested()
        calls.remove(call)


def hold_if_requested() -> None:
    """The main thread has nothing more to do: the thread that reads the signals ends the process."""
    if ENDING.watched and sys.exc_info()[0] in (KeyboardInterrupt, SystemExit):
        ENDING.requested.wait(_SIGNAL_ON_ITS_WAY)  # the main thread may hear of a signal first
    while ENDING.requested.is_set() and threading.current_thread() is threading.main_thread():
        ENDING.unwound.set()
        if ENDING.goes_on:
            return
        with suppress(KeyboardInterrupt, SystemExit):  # of the signal that is being dealt with
            threading.Event().wait()
