"""Launch a run through the daemon for another run in the same code location, follow it, and end it with that run."""

import time
from collections.abc import Callable, Mapping

import dagster as dg
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.utils import make_new_run_id

from assets.runs.work_run import (
    TOLD_BY,
    RunOutcome,
    WorkRun,
    completed,
    console_level,
    failed_checks_of,
    failure_of,
    job_of_location,
)
from assets.steps.dead_runs import PROCESS_TAG, process_tag
from gateau_dagster.errors import GateauError

# Tag of a launched run: the run that asked for it.
ASKED_BY_TAG = "gateau/refresh"
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_IN_THE_QUEUE = 60.0
_SECONDS_TO_END = 120.0
_SECONDS_BETWEEN_REQUESTS = 5.0


def run_by_daemon(
    instance: DagsterInstance,
    asking: DagsterRun,
    work: WorkRun,
    tags: Mapping[str, str],
    say: Callable[[str], None],
) -> RunOutcome:
    """Submit the run to the queue, and return when it has ended. It ends with the run that asks for it.

    Raises:
        GateauError: it failed, nothing would launch it, or it was terminated, which cancels the asking run, too.
    """
    require_queue(instance)
    run_id = make_new_run_id()
    try:
        run = _made(instance, asking, work, tags, run_id)
        _tell(instance, asking, work, f"Launches a run of {work.job}, which makes them.", run_id)
        _tell(instance, run, work, "Asked for by a run of refresh, which follows this one.", asking.run_id)
        instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run_id)
        ended = _followed(instance, run_id, say)
    except (KeyboardInterrupt, DagsterExecutionInterruptedError):
        _end(instance, run_id)
        raise
    return _outcome(instance, asking, ended)


def require_queue(instance: DagsterInstance) -> None:
    """Raise GateauError if Dagster's settings would make a run that waits for another one wait forever."""
    coordinator = instance.run_coordinator
    if not isinstance(coordinator, QueuedRunCoordinator):
        raise GateauError(
            f"dagster.yaml: run_coordinator: {type(coordinator).__name__} keeps no queue from which the daemon "
            "launches runs. Take the entry out: Dagster's own coordinator keeps one."
        )
    queue = instance.get_concurrency_config().run_queue_config
    if queue is not None and queue.max_concurrent_runs in {0, 1}:
        raise GateauError(
            "dagster.yaml: the queue lets one run work at a time, and `refresh` waits for the run that it makes. "
            "Allow at least 2 (concurrency.runs.max_concurrent_runs), or launch `everything` itself."
        )


def _tell(instance: DagsterInstance, run: DagsterRun, work: WorkRun, message: str, other: str) -> None:
    """Log the reason and the link to the other run as separate events, since the page folds long ones."""
    instance.report_engine_event(f"Out of date:\n{work.why}", run)
    link = {"run": dg.MetadataValue.dagster_run(other)}
    instance.report_engine_event(message, run, EngineEventData(link))


def _made(
    instance: DagsterInstance, asking: DagsterRun, work: WorkRun, tags: Mapping[str, str], run_id: str
) -> DagsterRun:
    """Create the run, not yet queued, with the code location and the process image of the asking run."""
    assert asking.remote_job_origin is not None
    job = job_of_location(work.job)
    run = instance.create_run_for_job(
        job.get_definition(),
        run_id=run_id,
        run_config=console_level("INFO"),
        status=DagsterRunStatus.NOT_STARTED,
        tags={**work.tags, **tags, ASKED_BY_TAG: asking.run_id, PROCESS_TAG: process_tag()},
        asset_selection=frozenset(work.assets),
        remote_job_origin=asking.remote_job_origin.repository_origin.get_job_origin(work.job),
        job_code_origin=job.get_python_origin(),
    )
    return completed(instance, run, work)


def _followed(instance: DagsterInstance, run_id: str, say: Callable[[str], None]) -> DagsterRun:
    """Return the run after it has ended."""
    waits_since = time.monotonic()
    while True:
        run = instance.get_run_by_id(run_id)
        if run is None:
            raise GateauError(f"the run {run_id}, which did the work, was deleted")
        if run.is_finished:
            return run
        if run.status is DagsterRunStatus.QUEUED and time.monotonic() - waits_since > _SECONDS_IN_THE_QUEUE:
            say(f"The run {run_id} waits in the queue: for other runs, or for Dagster's daemon, which launches it.")
            waits_since = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _outcome(instance: DagsterInstance, asking: DagsterRun, run: DagsterRun) -> RunOutcome:
    """Return the result of the run; raise GateauError if it did not succeed."""
    if run.status is DagsterRunStatus.CANCELED:
        instance.report_run_canceling(asking, f"The run {run.run_id}, which did the work, was terminated.")
        raise GateauError(f"The run {run.run_id} was terminated. What it had computed is kept.")
    entries = instance.all_logs(run.run_id, of_type=TOLD_BY)
    events = [entry.get_dagster_event() for entry in entries]
    if run.status is not DagsterRunStatus.SUCCESS:
        raise failure_of(events)
    return RunOutcome(run_id=run.run_id, failed_checks=failed_checks_of(events))


def _end(instance: DagsterInstance, run_id: str) -> None:
    """Terminate the run, if it exists, and wait up to two minutes: until then its steps hold the store."""
    deadline, asked = time.monotonic() + _SECONDS_TO_END, float("-inf")
    while time.monotonic() < deadline:
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return
        if time.monotonic() - asked >= _SECONDS_BETWEEN_REQUESTS:  # a starting run misses the first request
            _terminate(instance, run)
            asked = time.monotonic()
        time.sleep(_SECONDS_BETWEEN_LOOKS / 4)


def _terminate(instance: DagsterInstance, run: DagsterRun) -> None:
    """Remove a run from the queue, or ask its process to end."""
    if run.status is DagsterRunStatus.NOT_STARTED:
        instance.report_run_canceled(run)
    else:
        instance.run_coordinator.cancel_run(run.run_id)
