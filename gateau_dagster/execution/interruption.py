"""What a process does when it is told to end: by itself within seconds, at whatever moment the signal comes.

Python runs a signal's handler between two instructions of the main thread, and an exception that it raises is lost
where a library swallows it, during imports above all; while the main thread is inside a library it is not even raised.
So a thread of its own reads the signals. It leaves the main thread some time to end its work, then does what is needed
in its place, and ends the process. What is in the store is whole at every moment.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from gateau_dagster.execution.process_tree import signal_children

INTERRUPTED = "Interrupted. What was computed is kept; run again to go on."
AT_ONCE = "Interrupted twice, and ended at once: the last seconds may be lost. Run again to go on."
_NOT_KEPT = "the rows of the last seconds are not kept"
_NOT_ON_RECORD = "its end is not on record in Dagster"

# Seconds after the signal. The main thread ends its child processes itself; later they are told to, then killed.
_TELL_CHILDREN = 1.0
_LONGEST_UNWINDING = 3.0
_LONGEST_UNWINDING_OF_WORKER = 1.2  # so that whoever told it to end waits long enough
_LONGEST_SAVING = 4.0
_LONGEST_END = 4.6
# `timeout` and some shells send a signal to the process and to its group: that is one.
_ONE_SIGNAL = 0.3
_SIGNAL_ON_ITS_WAY = 0.5  # the main thread may hear of it first
_WAKES = signal.SIGURG  # ignored everywhere else; makes a main thread that waits look for its signals
_DONE = 0

Call = Callable[[], object]
Handler = Callable[[int, FrameType | None], None]

_requested = threading.Event()
_unwound = threading.Event()
_watching: "list[_Watch]" = []
_at_request: list[Call] = []
_at_end: list[Call] = []


@contextmanager
def at_request(call: Call) -> Iterator[None]:
    """While the block works: a thread calls this as soon as the process is told to end. The block is given time."""
    _at_request.append(call)
    try:
        yield
    finally:
        _hold_if_requested()
        _at_request.remove(call)


@contextmanager
def at_end(call: Call) -> Iterator[None]:
    """While the block works: a thread calls this just before the process ends, the innermost first."""
    _at_end.append(call)
    try:
        yield
    finally:
        _hold_if_requested()
        _at_end.remove(call)


@contextmanager
def ends_at_once() -> Iterator[None]:
    """A signal ends the process with one line: for the time in which there is nothing to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        _leave(number, 2, INTERRUPTED)

    with _handlers(_signals(), end):
        yield


@contextmanager
def ends_in_order(save: Call) -> Iterator[None]:
    """A signal ends the work of the block in order and then the process with one line; a second one, at once.

    Children of the process do not get a terminal's interrupt: they are ended by whoever started them, else from here.

    Args:
        save: keeps what was computed; called from a thread.
    """
    error_stream = os.dup(2)  # Dagster puts another file in its place while a step runs
    # multiprocessing's helper would say what it removes after us.
    silenced = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"]))
    with (
        _environment("PYTHONWARNINGS", silenced),
        _watched(_Watch(_signals(), save, error_stream, _LONGEST_UNWINDING), _raise_if_working),
    ):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            _hold_if_requested()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(error_stream)


@contextmanager
def worker_ends_in_order(save: Call) -> Iterator[None]:
    """The same for a worker process, which is told to end by SIGTERM, once or more often, and says nothing."""
    watch = _Watch([signal.SIGTERM], save, None, _LONGEST_UNWINDING_OF_WORKER)
    with _watched(watch, _raise_exit), at_request(lambda: None):
        yield


@contextmanager
def step_ends_in_order(save: Call) -> Iterator[None]:
    """The same for a process that Dagster's multi-process executor started, if Dagster's own way takes too long."""
    watch = _Watch([signal.SIGTERM, signal.SIGINT], save, None, _LONGEST_UNWINDING_OF_WORKER, is_last_resort=True)
    with _watched(watch, None), at_request(lambda: None):
        yield


def _signals() -> list[int]:
    """Those that end a command. A hang-up is ignored where `nohup` said so."""
    heeds_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if heeds_hangup else [])]


def _raise_if_working(number: int, _: FrameType | None) -> None:
    """In the main thread. Without work that is given time, the process is just about to end."""
    if _at_request:
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


def _hold_if_requested() -> None:
    """The main thread has nothing more to do: the watching thread ends the process."""
    if _watching and sys.exc_info()[0] in (KeyboardInterrupt, SystemExit):
        _requested.wait(_SIGNAL_ON_ITS_WAY)
    while _requested.is_set() and threading.current_thread() is threading.main_thread():
        _unwound.set()
        if any(watch.is_last_resort for watch in _watching):
            return
        with suppress(KeyboardInterrupt, SystemExit):  # of the signal that is being dealt with
            threading.Event().wait()


@contextmanager
def _watched(watch: "_Watch", handler: Handler | None) -> Iterator[None]:
    numbers = () if handler is None else watch.numbers
    with _no_word_of_lost_interrupts(), _handlers([_WAKES], _nothing), _handlers(numbers, handler or _nothing):
        earlier = signal.set_wakeup_fd(watch.writes, warn_on_full_buffer=False)
        thread = threading.Thread(target=watch.run, daemon=True, name="signal-watch")
        thread.start()
        _watching.append(watch)
        try:
            yield
        finally:
            _hold_if_requested()
            _watching.remove(watch)
            signal.set_wakeup_fd(earlier)
            os.write(watch.writes, bytes([_DONE]))
            thread.join()
            watch.close()


@contextmanager
def _no_word_of_lost_interrupts() -> Iterator[None]:
    """An interrupt inside a destructor, or where a library logs what it swallows: a traceback that helps nobody."""

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
class _Watch:
    """The thread that reads the signals `numbers`.

    error_stream: where it says its line; None: nowhere. longest_unwinding: seconds for the main thread.
    is_last_resort: a main thread that ends its work in that time goes on by itself.
    """

    numbers: Sequence[int]
    save: Call
    error_stream: int | None
    longest_unwinding: float
    is_last_resort: bool = False
    reads: int = field(init=False)
    writes: int = field(init=False)
    _started: float = field(init=False, default=0.0)
    _failures: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.reads, self.writes = os.pipe()
        os.set_blocking(self.writes, False)

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)

    def run(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.numbers)
        while (number := os.read(self.reads, 1)[0]) not in self.numbers:
            if number == _DONE:
                return
        self._end(number)

    def _end(self, number: int) -> None:
        self._started = time.monotonic()
        working = bool(_at_request)
        _requested.set()
        signal.pthread_kill(threading.main_thread().ident or 0, _WAKES)
        for call in [*_at_request]:
            self._call(call, _NOT_ON_RECORD, until=_TELL_CHILDREN)
        if working and not self._wait(_unwound.is_set, until=min(_TELL_CHILDREN, self.longest_unwinding)):
            signal_children(signal.SIGTERM)
            self._wait(_unwound.is_set, until=self.longest_unwinding)
        if self.is_last_resort and _unwound.is_set():
            return
        self._call(self.save, _NOT_KEPT, until=_LONGEST_SAVING)
        signal_children(signal.SIGKILL)
        for call in [*reversed(_at_end)]:
            self._call(call, _NOT_ON_RECORD, until=_LONGEST_END)
        but = "; ".join(dict.fromkeys(self._failures))
        _leave(number, self.error_stream, f"Interrupted, but {but}. Run again to go on." if but else INTERRUPTED)

    def _call(self, call: Call, if_not: str, *, until: float) -> None:
        """In a thread: it may hang, on a server that does not answer, say."""

        def called() -> None:
            try:
                call()
            except Exception as error:
                self._failures.append(f"{if_not} ({type(error).__name__}: {error})")

        thread = threading.Thread(target=called, daemon=True)
        thread.start()
        if not self._wait(lambda: not thread.is_alive(), until=until):
            self._failures.append(f"{if_not} (it took too long)")

    def _wait(self, ready: Callable[[], bool], *, until: float) -> bool:
        """Whether it is ready within so many seconds after the signal. A second signal ends the process."""
        while not ready():
            passed = time.monotonic() - self._started
            if passed >= until:
                return False
            if not select.select([self.reads], [], [], 0.02)[0]:
                continue
            number = os.read(self.reads, 1)[0]
            if number in self.numbers and passed >= _ONE_SIGNAL and self.error_stream is not None:
                signal_children(signal.SIGKILL)
                _leave(number, self.error_stream, AT_ONCE)
        return True


def _leave(number: int, error_stream: int | None, line: str) -> None:
    """Ends the process here and now, as shells expect it of one that a signal ended."""
    if error_stream is not None:
        red, plain, cursor = ("\033[31m", "\033[0m", "\r\033[K\033[?25h") if os.isatty(error_stream) else ("", "", "")
        os.write(error_stream, f"{cursor}{red}{line}{plain}\n".encode())
    os._exit(128 + number)
