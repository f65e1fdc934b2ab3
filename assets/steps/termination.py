"""Poll for a request to end a run: Dagster raises it once, and a running import may swallow it."""

import threading
import time
from typing import Protocol

from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.errors import DagsterExecutionInterruptedError

from gateau_dagster.progress import TimedProgress

_SECONDS_BETWEEN_LOOKS = 5.0


class OfRun(Protocol):
    """The part of a step's context that is needed here."""

    @property
    def instance(self) -> DagsterInstance:
        """Return the instance that has the run on record."""
        ...

    @property
    def run_id(self) -> str:
        """Return the id of the step's run."""
        ...


def is_to_end(instance: DagsterInstance, run_id: str) -> bool:
    """Return whether somebody has asked a run to end; False if the records are out of reach until the next look."""
    try:
        run = instance.get_run_by_id(run_id)
    except Exception:  # each database has its own; work that needs the records reports it
        return False
    return run is not None and run.status is DagsterRunStatus.CANCELING


def heed_termination(context: OfRun) -> None:
    """Raise DagsterExecutionInterruptedError in a run that somebody has asked to end."""
    if is_to_end(context.instance, context.run_id):
        raise DagsterExecutionInterruptedError


def heeding(context: OfRun, progress: TimedProgress) -> TimedProgress:
    """Return a progress callback that also looks every few seconds whether the run was asked to end."""
    looked = time.monotonic()

    def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        nonlocal looked
        progress(done, total, unit, note, left=left)
        in_main_thread = threading.current_thread() is threading.main_thread()  # another thread would end alone
        if in_main_thread and time.monotonic() - looked >= _SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            heed_termination(context)

    return report
