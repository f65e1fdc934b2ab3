"""End a process within seconds after a signal, at any moment.

Python runs a signal's handler between two instructions of the main thread. A library may swallow the exception that it
raises, above all during imports; inside a library it is not even raised. So a separate thread reads the signals. It
gives the main thread some time to finish, then does the rest itself and ends the process. The store is consistent at
every moment.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from types import FrameType

from gateau_dagster.execution.ending import ENDING, Call, at_request, hold_if_requested
from gateau_dagster.execution.signal_watch import (
    INTERRUPTED,
    LONGEST_UNWINDING,
    LONGEST_UNWINDING_OF_WORKER,
    WAKES,
    SignalWatch,
    leave,
)

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def ends_at_once() -> Iterator[None]:
    """End the process with one line after a signal, within the block: for work with nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        leave(number, 2, INTERRUPTED)

    with _handlers(_signals(), end):
        yield


@contextmanager
def ends_in_order(save: Call) -> Iterator[None]:
    """End the work of the block in order after a signal, then the process with one line; after a second one, at once.

    Children do not receive a terminal's interrupt: their starter ends them, else this process.

    Args:
        save: keeps what was computed; called from a thread.
    """
    error_stream = os.dup(2)  # Dagster replaces it by another file while a step runs
    # multiprocessing's helper would report what it removes after us.
    silenced = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"]))
    with (
        ExitStack() as opened,
        _environment("PYTHONWARNINGS", silenced),
        _watched(SignalWatch(_signals(), save, error_stream, LONGEST_UNWINDING), _raise_if_working),
    ):
        opened.callback(os.close, error_stream)
        # multiprocessing starts its helper with its first process, which unblocks the interrupt; so it starts before
        # the block.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            hold_if_requested()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_ends_in_order(save: Call) -> Iterator[None]:
    """End a worker process in order after one or more SIGTERM signals, without a message."""
    watch = SignalWatch([signal.SIGTERM], save, None, LONGEST_UNWINDING_OF_WORKER)
    with _watched(watch, _raise_exit), at_request(lambda: None):
        yield


@contextmanager
def step_ends_in_order(save: Call) -> Iterator[None]:
    """End a process of Dagster's multi-process executor in order, if Dagster's own way takes too long."""
    watch = SignalWatch([signal.SIGTERM, signal.SIGINT], save, None, LONGEST_UNWINDING_OF_WORKER, is_last_resort=True)
    with _watched(watch, None), at_request(lambda: None):
        yield


def _signals() -> list[int]:
    """Return the signals that end a command. A hang-up is ignored under `nohup`."""
    heeds_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if heeds_hangup else [])]


def _raise_if_working(number: int, _: FrameType | None) -> None:
    """Raise in the main thread if its work gets time to end; otherwise the process is about to end."""
    if ENDING.at_request:
        raise KeyboardInterrupt(number)


def _raise_exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _nothing(number: int, _: FrameType | None) -> None:
    del number


@contextmanager
def _handlers(numbers: Sequence[int], handler: Handler) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, signal.SIG_DFL if found is None else found)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before, os.environ[name] = os.environ.get(name), value
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


@contextmanager
def _watched(watch: SignalWatch, handler: Handler | None) -> Iterator[None]:
    numbers = () if handler is None else watch.numbers
    with _no_word_of_lost_interrupts(), _handlers([WAKES], _nothing):
        earlier = signal.set_wakeup_fd(watch.writes, warn_on_full_buffer=False)
        watch.thread.start()
        ENDING.watched, ENDING.goes_on = True, watch.is_last_resort
        try:
            with _handlers(numbers, handler or _nothing):  # last, since the earlier handlers receive signals until then
                try:
                    yield
                finally:
                    hold_if_requested()
        finally:
            ENDING.watched = False
            signal.set_wakeup_fd(earlier)
            watch.close()


@contextmanager
def _no_word_of_lost_interrupts() -> Iterator[None]:
    """Suppress useless tracebacks of interrupts inside destructors, or where a library logs what it swallows."""

    def unraisable(found: "sys.UnraisableHookArgs") -> None:
        if issubclass(found.exc_type, Exception):
            hook(found)

    def worth_saying(record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is None or issubclass(kind, Exception)

    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    assert logging.lastResort is not None
    logging.lastResort.addFilter(worth_saying)
    try:
        yield
    finally:
        logging.lastResort.removeFilter(worth_saying)
        sys.unraisablehook = hook
