"""Register work for the end of the process, and hold its main thread until then."""

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
    """The state of this process's end.

    requested: it was told to end. unwound: its main thread has ended its work. watched: a thread reads the signals.
    goes_on: an unwound main thread ends by itself. at_request, at_end: see the functions.
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
    """Have a thread run `call` as soon as the process is told to end during the block, which gets time to finish.

    Use `at_end` for required work: a failure here is not reported.
    """
    with _listed(call, ENDING.at_request):
        yield


@contextmanager
def at_end(call: Call, if_not: str | None = None) -> Iterator[None]:
    """Have a thread run `call` just before the process ends during the block; the innermost call comes first.

    Args:
        call: the work.
        if_not: message to the user if it fails or takes too long; None: no message.
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
    """Hold a finished main thread: the thread that reads the signals ends the process."""
    if ENDING.watched and sys.exc_info()[0] in (KeyboardInterrupt, SystemExit):
        ENDING.requested.wait(_SIGNAL_ON_ITS_WAY)  # the main thread may receive a signal first
    while ENDING.requested.is_set() and threading.current_thread() is threading.main_thread():
        ENDING.unwound.set()
        if ENDING.goes_on:
            return
        with suppress(KeyboardInterrupt, SystemExit):  # from the signal that is being handled
            threading.Event().wait()
