"""Read the signals of a process in a thread, and bring the process to its end. See `interruption`."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateau_dagster.execution.ending import ENDING, Call
from gateau_dagster.execution.process_tree import signal_children
from gateau_dagster.storage import fence

INTERRUPTED = "Interrupted. What was computed is kept; run again to go on."
AT_ONCE = "Interrupted twice, and ended at once: the last seconds may be lost. Run again to go on."
_NOT_KEPT = "the rows of the last seconds are not kept"

# Seconds after the signal. The main thread ends its child processes itself; afterwards they are told to end, then
# killed.
_TELL_CHILDREN = 1.0
LONGEST_UNWINDING = 3.0
LONGEST_UNWINDING_OF_WORKER = 1.2  # short enough for the patience of the process that ends it
_LONGEST_SAVING = 4.0
_LONGEST_END = 4.6
# `timeout` and some shells send a signal to the process and to its group: these count as one.
_ONE_SIGNAL = 0.3
WAKES = signal.SIGURG  # ignored everywhere else; wakes a waiting main thread for its signals
_DONE = 0


@dataclass
class SignalWatch:
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
            leave(number, self.error_stream, f"Interrupted, but not in order ({type(error).__name__}: {error}).")

    def _end(self, number: int) -> None:
        self._started = time.monotonic()
        working = bool(ENDING.at_request)
        ENDING.requested.set()
        signal.pthread_kill(threading.main_thread().ident or 0, WAKES)
        for call in [*ENDING.at_request]:
            self._call(call, None, until=_TELL_CHILDREN)  # a failure here is repaired or reported at the end
        if working and not self._wait(ENDING.unwound.is_set, until=min(_TELL_CHILDREN, self.longest_unwinding)):
            signal_children(signal.SIGTERM)
            self._wait(ENDING.unwound.is_set, until=self.longest_unwinding)
        if self.is_last_resort and ENDING.unwound.is_set():
            return
        self._call(self.save, _NOT_KEPT, until=_LONGEST_SAVING)
        signal_children(signal.SIGKILL)
        for call, if_not in [*reversed(ENDING.at_end)]:
            self._call(call, if_not, until=_LONGEST_END)
        but = "; ".join(dict.fromkeys(self._failures))
        line = f"Interrupted, but {but}. Run again to go on." if but else INTERRUPTED
        leave(number, self.error_stream, f"Error: {fence.loss()}" if fence.loss() else line)

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
                signal_children(signal.SIGKILL)
                leave(number, self.error_stream, AT_ONCE)
        return True


def leave(number: int, error_stream: int | None, line: str) -> None:
    """End the process at once, with the exit status that shells expect after a signal."""
    try:
        if error_stream is not None:
            shown = os.isatty(error_stream)
            red, plain, cursor = ("\033[31m", "\033[0m", "\r\033[K\033[?25h") if shown else ("", "", "")
            os.write(error_stream, f"{cursor}{red}{line}{plain}\n".encode())
    finally:  # even if nobody is left to read it
        os._exit(128 + number)
