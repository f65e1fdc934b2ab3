"""End a process within seconds after a signal, at any moment, with all its descendants.

Python runs a signal's handler between two instructions of the main thread. A library may swallow the exception that it
raises, above all during imports; inside a library it is not even raised. So a separate thread reads the signals. It
gives the main thread some time to finish, then does the rest itself and ends the process. The store is consistent at
every moment.
"""

# Why so much: a run must end within seconds, wherever it is. Passes take seconds, imports of torch take seconds, and a
# server may hang for a minute. Python's own way, an exception in the main thread, waits for all of them. Killing at
# once would lose the rows of the last seconds, and leave child processes with GPUs.
#
# The order of an end: ask the work to stop, tell child processes, save the rows, kill the rest, run the last calls,
# leave. Each has its share of five seconds, and what takes longer is left behind. Nothing has to be repaired: the store
# is consistent at every moment, and the next run continues.
#
# When another way is better: a server that may take minutes to end can wait for its work. A program without children
# and threads needs only `except KeyboardInterrupt`.

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from gateau_dagster.storage import fence

if TYPE_CHECKING:
    import psutil

Call = Callable[[], object]
Handler = Callable[[int, FrameType | None], None]
Listed = TypeVar("Listed")

INTERRUPTED = "Interrupted. All computed results are kept. Run again to continue."
AT_ONCE = "Interrupted twice and stopped at once. The work of the last seconds may be lost. Run again to continue."
_NOT_KEPT = "the rows of the last seconds are not kept"

# Seconds after the signal. The main thread ends its child processes itself; afterwards they are told to end, then
# killed.
_TELL_CHILDREN = 1.0
_LONGEST_UNWINDING = 3.0
_LONGEST_UNWINDING_OF_WORKER = 1.2  # short enough for the patience of the process that ends it
_LONGEST_SAVING = 4.0
_LONGEST_END = 4.6
# `timeout` and some shells send a signal to the process and to its group: these count as one.
_ONE_SIGNAL = 0.3
_WAKES = signal.SIGURG  # ignored everywhere else; wakes a waiting main thread for its signals
_DONE = 0
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
        _hold_if_requested()
        calls.remove(call)


def _hold_if_requested() -> None:
    """Hold a finished main thread: the thread that reads the signals ends the process."""
    if ENDING.watched and sys.exc_info()[0] in (KeyboardInterrupt, SystemExit):
        ENDING.requested.wait(_SIGNAL_ON_ITS_WAY)  # the main thread may receive a signal first
    while ENDING.requested.is_set() and threading.current_thread() is threading.main_thread():
        ENDING.unwound.set()
        if ENDING.goes_on:
            return
        with suppress(KeyboardInterrupt, SystemExit):  # from the signal that is being handled
            threading.Event().wait()


@contextmanager
def ends_at_once() -> Iterator[None]:
    """End the process with one line after a signal, within the block: for work with nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        _leave(number, 2, INTERRUPTED)

    with _handlers(_signals(), end):
        yield


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Yield a list that receives the signals within the block, for work that looks at it and ends in its own way."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    with _handlers(_signals(), note):
        yield received


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
        _watched(_SignalWatch(_signals(), save, error_stream, _LONGEST_UNWINDING), _raise_if_working),
    ):
        opened.callback(os.close, error_stream)
        # multiprocessing starts its helper with its first process, which unblocks the interrupt; so it starts before
        # the block.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            _hold_if_requested()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_ends_in_order(save: Call) -> Iterator[None]:
    """End a worker process in order after one or more SIGTERM signals, without a message."""
    watch = _SignalWatch([signal.SIGTERM], save, None, _LONGEST_UNWINDING_OF_WORKER)
    with _watched(watch, _raise_exit), at_request(lambda: None):
        yield


@contextmanager
def step_ends_in_order(save: Call) -> Iterator[None]:
    """End a process of Dagster's multi-process executor in order, if Dagster's own way takes too long."""
    watch = _SignalWatch([signal.SIGTERM, signal.SIGINT], save, None, _LONGEST_UNWINDING_OF_WORKER, is_last_resort=True)
    with _watched(watch, None), at_request(lambda: None):
        yield


def _signals() -> list[int]:
    # A hang-up is ignored under `nohup`.
    heeds_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if heeds_hangup else [])]


def _raise_if_working(number: int, _: FrameType | None) -> None:
    # Without work that gets time to end, the process is about to end.
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
def _watched(watch: "_SignalWatch", handler: Handler | None) -> Iterator[None]:
    numbers = () if handler is None else watch.numbers
    with _no_word_of_lost_interrupts(), _handlers([_WAKES], _nothing):
        earlier = signal.set_wakeup_fd(watch.writes, warn_on_full_buffer=False)
        watch.thread.start()
        ENDING.watched, ENDING.goes_on = True, watch.is_last_resort
        try:
            with _handlers(numbers, handler or _nothing):  # last, since the earlier handlers receive signals until then
                try:
                    yield
                finally:
                    _hold_if_requested()
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


@dataclass
class _SignalWatch:
    """The thread that reads the signals `numbers`.

    save: keeps what was computed. error_stream: for its message; None: no message.
    longest_unwinding: seconds for the main thread. is_last_resort: whether a main thread that finishes in time ends the
    process itself.
    """

    numbers: Sequence[int]
    save: Call
    error_stream: int | None
    longest_unwinding: float
    is_last_resort: bool = False
    reads: int = field(init=False)
    writes: int = field(init=False)
    thread: threading.Thread = field(init=False)
    _started: float = field(init=False, default=0.0)
    _failures: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.reads, self.writes = os.pipe()
        os.set_blocking(self.writes, False)
        self.thread = threading.Thread(target=self.run, daemon=True, name="signal-watch")

    def close(self) -> None:
        """End the thread, unless it ends the process."""
        os.write(self.writes, bytes([_DONE]))
        self.thread.join()
        os.close(self.reads)
        os.close(self.writes)

    def run(self) -> None:
        """Run the thread: wait for a signal, and end the process."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.numbers)
        while (number := os.read(self.reads, 1)[0]) not in self.numbers:
            if number == _DONE:
                return
        try:
            self._end(number)
        except Exception as error:  # the main thread waits for an end
            _leave(number, self.error_stream, f"Interrupted, but stopping failed ({type(error).__name__}: {error}).")

    def _end(self, number: int) -> None:
        # Every limit below counts from here. So steps that are quick leave their time to the later ones, and the sum is
        # bounded.
        self._started = time.monotonic()
        working = bool(ENDING.at_request)
        ENDING.requested.set()
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKES)
        for call in [*ENDING.at_request]:
            self._call(call, None, until=_TELL_CHILDREN)  # a failure here is repaired or reported at the end
        if working and not self._wait(ENDING.unwound.is_set, until=min(_TELL_CHILDREN, self.longest_unwinding)):
            _signal_children(signal.SIGTERM)
            self._wait(ENDING.unwound.is_set, until=self.longest_unwinding)
        # The process ends itself, in Dagster's way, and in time.
        if self.is_last_resort and ENDING.unwound.is_set():
            return
        self._call(self.save, _NOT_KEPT, until=_LONGEST_SAVING)
        _signal_children(signal.SIGKILL)
        for call, if_not in [*reversed(ENDING.at_end)]:
            self._call(call, if_not, until=_LONGEST_END)
        but = "; ".join(dict.fromkeys(self._failures))
        line = f"Interrupted, but {but}. Run again to continue." if but else INTERRUPTED
        _leave(number, self.error_stream, f"Error: {fence.loss()}" if fence.loss() else line)

    def _call(self, call: Call, if_not: str | None, *, until: float) -> None:
        """Call in a thread, since it may hang on a server that does not answer. `if_not`: message if it fails."""

        def fails(why: object) -> None:
            if if_not is not None:
                self._failures.append(f"{if_not} ({why})")

        def called() -> None:
            try:
                call()
            except Exception as error:
                fails(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=called, daemon=True)
        thread.start()
        if not self._wait(lambda: not thread.is_alive(), until=until):
            fails("it took too long")

    def _wait(self, ready: Callable[[], bool], *, until: float) -> bool:
        """Return whether it is ready within `until` seconds after the signal. A second signal ends the process."""
        while not ready():
            passed = time.monotonic() - self._started
            if passed >= until:
                return False
            if not select.select([self.reads], [], [], 0.02)[0]:
                continue
            number = os.read(self.reads, 1)[0]
            if number in self.numbers and passed >= _ONE_SIGNAL and self.error_stream is not None:
                _signal_children(signal.SIGKILL)
                _leave(number, self.error_stream, AT_ONCE)
        return True


def _leave(number: int, error_stream: int | None, line: str) -> None:
    """End the process at once, with the exit status that shells expect after a signal."""
    try:
        if error_stream is not None:
            shown = os.isatty(error_stream)
            red, plain, cursor = ("\033[31m", "\033[0m", "\r\033[K\033[?25h") if shown else ("", "", "")
            # To the file's number: another thread may hold the lock of Python's stream, and wait for this one.
            os.write(error_stream, f"{cursor}{red}{line}{plain}\n".encode())
    finally:  # even if nobody is left to read it
        # Not sys.exit: that would join threads, run exit handlers and flush buffers, each of which may hang.
        os._exit(128 + number)


def _signal_children(number: int) -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # the latter: it became another user's
            # multiprocessing's own helper cleans up after this process, and ends with it.
            if not any("multiprocessing.resource_tracker" in word for word in child.cmdline()):
                child.send_signal(number)


def end_tree(process: subprocess.Popen[bytes], *, patience: float) -> None:
    """End a child process and all its descendants by SIGTERM; kill them after `patience` seconds.

    A child that has ended already is left alone: its id may be reused.
    """
    import psutil

    if process.poll() is not None:
        return
    root = psutil.Process(process.pid)
    family = [root, *root.children(recursive=True)]
    _signal(family, signal.SIGTERM)
    _, left = psutil.wait_procs(family, timeout=patience)
    _signal(left, signal.SIGKILL)
    process.wait()


def _signal(processes: "Sequence[psutil.Process]", number: int) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)
