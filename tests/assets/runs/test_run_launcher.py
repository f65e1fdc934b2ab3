"""`Terminate` in the UI says what is so: runs of the terminal end, and those that nobody listens for do not."""

from dataclasses import replace

import pytest
from dagster import DagsterRunStatus

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.runs.launching import location_origin
from gateau_dagster.assets.runs.run_launcher import RunLauncher
from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG
from gateau_dagster.config import Config
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import empty_job

HERE = ProcessIdentity.of()
GONE = replace(HERE, start_ticks=HERE.start_ticks - 1000)


@pytest.mark.parametrize(
    ("process", "of_location", "answer", "status"),
    [
        (HERE, True, True, "CANCELING"),
        (GONE, True, True, "CANCELED"),
        (None, True, False, "CANCELING"),
        (HERE, False, False, "CANCELING"),
    ],
    ids=["of the terminal", "whose process is gone", "without a process", "without a code location"],
)
def test_what_the_button_is_answered(
    config: Config, process: ProcessIdentity | None, of_location: bool, answer: bool, status: str
) -> None:
    origin = location_origin().get_job_origin("empty_job") if of_location else None
    tags = {} if process is None else {PROCESS_TAG: process.to_text()}
    with open_instance(config) as instance:
        assert isinstance(instance.run_launcher, RunLauncher)
        run = instance.create_run_for_job(
            empty_job, tags=tags, status=DagsterRunStatus.STARTED, remote_job_origin=origin
        )
        assert instance.run_coordinator.cancel_run(run.run_id) is answer
        assert [each.status.value for each in instance.get_runs()] == [status]
