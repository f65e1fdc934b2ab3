"""Run one rank of training, `python -m gateau_dagster.resources.training_process SPEC.json`, from Dagster or by hand.

Rank 0 alone reports to Dagster (Pipes): progress lines in the log, and for every step the metrics as a custom message
`{"training_step": {...}}`. Started by hand, it prints the lines. The status is 1 with one readable line for a user's
error, and 143 when told to stop.
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from dagster_pipes import PipesContext, PipesEnvVarParamsLoader, open_dagster_pipes

from gateau_dagster.errors import GateauError, redact_exception, redact_output, redacted
from gateau_dagster.execution import collect_rarely
from gateau_dagster.storage import fence
from gateau_dagster.storage.fence import LeaseLostError
from gateau_dagster.training.launch import (
    LAUNCHER_VARIABLE,
    TrainingSpec,
    hung_up,
    record_failure,
    recorded_failure,
    share_cores,
)

MESSAGE_KEY = "training_step"
_SECONDS_BETWEEN_LINES = 2.0
# In a run's log, where the launching process reports progress every few seconds.
_SECONDS_BETWEEN_LINES_OF_A_RUN = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0


def progress_line(metrics: dict[str, Any]) -> str:
    """Return the log line of one step."""
    norm = metrics["grad_norm"]
    return (
        f"step {metrics['step']}/{metrics['total']}  loss {metrics['loss']:.4f}  lr {metrics['learning_rate']:.2e}  "
        + (f"grad norm {norm:.3f}  " if norm is not None else "")
        + f"{metrics['tokens_per_second']:,.0f} tokens/s  {metrics['seconds_left']:.0f} s left  "
        + (f"MFU {metrics['mfu']:.0%}  " if metrics.get("mfu") is not None else "")
        + f"peak {metrics['peak_memory_bytes'] / 2**20:,.0f} MiB"
    )


class Reporter:
    """Sends every step's metrics; logs a line every few seconds, at the first step and at the last."""

    def __init__(
        self,
        say: Callable[[str], None],
        send: Callable[[dict[str, Any]], None],
        *,
        every: float = _SECONDS_BETWEEN_LINES,
    ) -> None:
        self._say, self._send, self._every = say, send, every
        self._said = float("-inf")

    def __call__(self, metrics: dict[str, Any]) -> None:
        """Send a step's figures, and print a line about them now and then."""
        self._send({MESSAGE_KEY: metrics})
        now = time.monotonic()
        if now - self._said >= self._every or metrics["step"] == metrics["total"]:
            self._said = now
            self._say(progress_line(metrics))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end_with_launcher() -> None:
    """End this process when the one that started the training, or this rank's parent (torchrun), is gone.

    An orphan would write where the next attempt writes. The starting process cannot be seen from another machine: there
    the launcher ends the ranks when one of them ends. A process started by hand, without a launcher, may outlive its
    shell.
    """
    host, _, pid = os.environ.get(LAUNCHER_VARIABLE, "").partition("|")
    if not host and "RANK" not in os.environ:
        return
    parent = os.getppid()
    try:
        launcher = psutil.Process(int(pid)) if host == socket.gethostname() else None
    except psutil.NoSuchProcess:
        os._exit(1)

    def watch() -> None:
        # `sys.exit` would only end this thread, while the main thread may wait for other ranks forever.
        while os.getppid() == parent and (launcher is None or _runs(launcher)):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="launcher-watch").start()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _choose_accelerator() -> None:
    # Before DeepSpeed is imported, since it chooses then. The machine of the launcher may have a GPU that this one
    # lacks.
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _unexpected(error: BaseException) -> str:
    """Return one line for a defect; gloo and NCCL report a dead rank only as a closed connection."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if hung_up(error):
        return (
            "another rank of the training died or does not answer. The system often kills ranks for lack of memory. "
            f"Run again: training continues from the last complete checkpoint. ({text})"
        )
    return text


def _fail(spec: TrainingSpec | None, message: str, say: Callable[[str], None] | None) -> int:
    """Report the reason to standard error, the failure file and Dagster's log; return status 1."""
    message = redacted(message)
    sys.stderr.write(f"error: {message}\n")
    if say is not None:
        say(f"error: {message}")
    if spec is not None:
        try:
            record_failure(spec, message)
        except (GateauError, OSError) as error:  # `failure_message` finds the obstacle by itself
            sys.stderr.write(redacted(f"(the reason could not be written: {error})\n"))
    return 1


def main(arguments: list[str]) -> int:
    """Run one rank, and return the exit status."""
    if len(arguments) != 1:
        return _fail(None, "usage: python -m gateau_dagster.resources.training_process SPEC.json", None)
    redact_output()
    signal.signal(signal.SIGTERM, _stop)
    # DeepSpeed uses names that torch is renaming: hundreds of warnings that no user can act on.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.", category=FutureWarning)
    _end_with_launcher()
    share_cores()
    collect_rarely()
    first = os.environ.get("RANK", "0") == "0"
    spec: TrainingSpec | None = None
    with ExitStack() as stack:
        pipes: PipesContext | None = None
        if first and PipesEnvVarParamsLoader().is_dagster_pipes_process():
            pipes = stack.enter_context(open_dagster_pipes())
        say = _print if pipes is None else pipes.log.info
        send = pipes.report_custom_message if pipes is not None else _ignore
        try:
            spec = TrainingSpec.load(Path(arguments[0]))
            fence.adopt(spec.leases)
            if first:
                spec.failure.unlink(missing_ok=True)
            _choose_accelerator()
            from gateau_dagster.training.train import train

            every = _SECONDS_BETWEEN_LINES if pipes is None else _SECONDS_BETWEEN_LINES_OF_A_RUN
            train(spec, Reporter(say, send, every=every), say=say)
        except LeaseLostError as error:  # the files of the training are another run's
            return _fail(None, str(error), None if pipes is None else pipes.log.error)
        except GateauError as error:
            return _fail(spec, str(error), None if pipes is None else pipes.log.error)
        except Exception as error:
            error = redact_exception(error)
            traceback.print_exception(error)
            # A rank that fails because another one did must not hide the other's reason.
            known = spec is not None and bool(recorded_failure(spec))
            return _fail(None if known else spec, _unexpected(error), None if pipes is None else pipes.log.error)
    return 0


def _ignore(message: dict[str, Any]) -> None:
    del message


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)
