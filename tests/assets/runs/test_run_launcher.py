"""`Terminate` in the UI says what is so: runs of the terminal end, and those that nobody listens for do not."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.runs.launching import location_origin
from gateau_dagster.assets.runs.run_launcher import RunLauncher
from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG, process_tag
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.project import make_project


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """In a new home."""
    with open_instance(load_project(make_project(tmp_path, samples=2, shards=1))) as found:
        assert isinstance(found.run_launcher, RunLauncher)
        yield found


@dg.job
def empty_job() -> None:
    """Nothing."""


def terminated(instance: DagsterInstance, process: str | None, *, of_location: bool = True) -> tuple[bool, str]:
    """What the button is answered, and the run's status then."""
    origin = location_origin().get_job_origin("empty_job") if of_location else None
    tags = {} if process is None else {PROCESS_TAG: process}
    run = instance.create_run_for_job(empty_job, tags=tags, status=DagsterRunStatus.STARTED, remote_job_origin=origin)
    answer = instance.run_coordinator.cancel_run(run.run_id)
    (found,) = instance.get_runs()
    return answer, found.status.value


def test_a_run_of_the_terminal_is_told_to_end(instance: DagsterInstance) -> None:
    assert terminated(instance, process_tag()) == (True, "CANCELING")


def test_one_whose_process_is_gone_has_ended(instance: DagsterInstance) -> None:
    identity = ProcessIdentity.of()
    gone = replace(identity, start_ticks=identity.start_ticks - 1000).to_text()
    assert terminated(instance, gone) == (True, "CANCELED")


def test_of_one_without_a_process_dagster_says_that_it_cannot(instance: DagsterInstance) -> None:
    assert terminated(instance, None)[0] is False


def test_of_one_without_a_code_location_dagster_says_that_it_cannot(instance: DagsterInstance) -> None:
    assert terminated(instance, process_tag(), of_location=False)[0] is False
