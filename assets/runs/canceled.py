"""A run that someone interrupts is recorded as canceled, whatever of it still works when the interrupt comes."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from gateau_dagster.execution.ending import at_end, at_request

_ENDED_WELL = {DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED}


@contextmanager
def canceled_when_interrupted(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """For the block that makes a run and works on it. One that has failed did so by the interrupt."""

    def canceling() -> None:
        run = instance.get_run_by_id(run_id)
        if run is not None and not run.is_finished and run.status is not DagsterRunStatus.CANCELING:
            instance.report_run_canceling(run, "Interrupted.")

    def canceled() -> None:
        run = instance.get_run_by_id(run_id)
        if run is not None:
            record_canceled(instance, run)

    with at_request(canceling), at_end(canceled, "its end is not on record in Dagster"):
        yield


def record_canceled(instance: DagsterInstance, run: DagsterRun) -> None:
    """Records the end of a run, unless it ended well or as canceled, and frees what it holds of the pools.

    Dagster itself frees nothing for a step of another process that was interrupted.
    """
    if instance.event_log_storage.supports_global_concurrency_limits:
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    if run.status not in _ENDED_WELL:
        instance.report_run_canceled(run, "Interrupted. What was computed is kept.")
