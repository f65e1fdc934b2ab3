"""What becomes of a run on record when it is interrupted."""

from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from assets.runs.launching import canceled_when_interrupted
from gateau_dagster.execution.interruption import ENDING


@dg.job
def empty_job() -> None:
    """Nothing."""


@pytest.mark.parametrize(
    ("status", "told", "ended"),
    [
        (DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED),
        (DagsterRunStatus.STARTING, DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED),
        # Dagster calls it a failure where it hears of the interrupt before it is told that somebody wanted it.
        (DagsterRunStatus.FAILURE, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED),
        (DagsterRunStatus.SUCCESS, DagsterRunStatus.SUCCESS, DagsterRunStatus.SUCCESS),
        (DagsterRunStatus.CANCELED, DagsterRunStatus.CANCELED, DagsterRunStatus.CANCELED),
    ],
)
def test_an_interrupted_run_is_canceled(
    status: DagsterRunStatus, told: DagsterRunStatus, ended: DagsterRunStatus
) -> None:
    with DagsterInstance.ephemeral() as instance:
        ours = instance.create_run_for_job(empty_job, status=status).run_id
        other = instance.create_run_for_job(empty_job, status=DagsterRunStatus.STARTED).run_id

        def now(run_id: str) -> DagsterRunStatus:
            run = instance.get_run_by_id(run_id)
            assert run is not None
            return run.status

        with canceled_when_interrupted(instance, ours):
            ENDING.at_request[-1]()
            assert now(ours) is told
            ENDING.at_end[-1][0]()
            assert now(ours) is ended
        assert now(other) is DagsterRunStatus.STARTED
        assert not ENDING.at_request and not ENDING.at_end


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTED, DagsterRunStatus.CANCELED])
def test_its_pool_slots_are_free(status: DagsterRunStatus, tmp_path: Path) -> None:
    """Whoever recorded that it is canceled: the next run would wait for them for ever."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = instance.create_run_for_job(empty_job, status=status)
        storage = instance.event_log_storage
        storage.set_concurrency_slots("gpu", 1)
        assert storage.claim_concurrency_slot("gpu", run.run_id, "cam").is_claimed
        with canceled_when_interrupted(instance, run.run_id):
            ENDING.at_end[-1][0]()
        assert storage.get_concurrency_info("gpu").active_slot_count == 0
