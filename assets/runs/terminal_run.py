"""A run in this process: what `gateau run` makes, which needs no daemon, and whoever has Dagster's jobs without one."""

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.execution.api import execute_run
from dagster._core.utils import make_new_run_id

from assets.runs.canceled import canceled_when_interrupted, record_canceled
from assets.runs.code_location import job_of_location, location_origin
from assets.runs.outcome import Outcome, failed_checks_of, failure_of, interrupted
from assets.runs.work_run import WorkRun, completed, console_level
from assets.steps.dead_runs import PROCESS_TAG, process_tag
from assets.steps.termination import is_to_end
from gateau_dagster.errors import ENVIRONMENT_VARIABLE
from gateau_dagster.execution.ending import ENDING
from resources.configuration import ConfigurationResource

_SECONDS_BETWEEN_LOOKS = 2.0


def run_here(
    instance: DagsterInstance, configuration: ConfigurationResource, work: WorkRun, tags: Mapping[str, str], level: str
) -> Outcome:
    """Makes the run and works on it until it ends. `level`: of what it prints; the UI has every line anyway.

    Raises:
        KeyboardInterrupt: it was interrupted from the terminal, or terminated in the UI.
        GateauError: it failed; an UnforeseenError by a defect.
    """
    run_id = make_new_run_id()
    with _configured_environment(configuration), canceled_when_interrupted(instance, run_id):
        job = job_of_location(work.job)
        run = instance.create_run_for_job(
            job.get_definition(),
            run_id=run_id,
            run_config=console_level(level),
            status=DagsterRunStatus.NOT_STARTED,
            tags={**work.tags, **tags, PROCESS_TAG: process_tag()},
            asset_selection=frozenset(work.assets),
            remote_job_origin=location_origin().get_job_origin(work.job),
            job_code_origin=job.get_python_origin(),
        )
        run = completed(instance, run, work)
        with _ended_on_request(instance, run_id), execute_run(job, run, instance) as result:
            if not result.success and interrupted(result.all_events):
                record_canceled(instance, result.dagster_run)
                raise KeyboardInterrupt
            if not result.success:
                raise failure_of(result.all_events)
            return Outcome(run_id=run_id, failed_checks=failed_checks_of(result.all_events))


@contextmanager
def _ended_on_request(instance: DagsterInstance, run_id: str) -> Iterator[None]:
    """Termination in the UI reaches a process that the UI did not start: the status asks for it."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS_BETWEEN_LOOKS):
            if not is_to_end(instance, run_id):
                continue
            if not ENDING.requested.is_set():  # else it is Ctrl-C that has set the status
                os.kill(os.getpid(), signal.SIGINT)
            return

    thread = threading.Thread(target=look, daemon=True, name="termination-watch")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _configured_environment(configuration: ConfigurationResource) -> Iterator[None]:
    """The definitions are loaded by name and read their configuration file from the environment."""
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    os.environ[ENVIRONMENT_VARIABLE] = configuration.config_file
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT_VARIABLE)
        if before is not None:
            os.environ[ENVIRONMENT_VARIABLE] = before
