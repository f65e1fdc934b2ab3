"""Test how a run is launched, what is reported of one that failed, and what happens to one that is interrupted."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gateau_dagster.assets.runs.launching import canceled_when_interrupted, failure_of, require_queue
from gateau_dagster.errors import UnforeseenError
from gateau_dagster.execution.interruption import ENDING
from tests.assets.harness import empty_job
from tests.error_codes import refused

ONE_BY_ONE = {"concurrency": {"runs": {"max_concurrent_runs": 1}}}
WITHOUT_QUEUE = {"run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (ONE_BY_ONE, "max_concurrent_runs"),
        (WITHOUT_QUEUE, "coordinator"),
        ({}, None),
        ({"concurrency": {"runs": {"max_concurrent_runs": 2}}}, None),
    ],
)
def test_a_queue_that_would_wait_for_ever_is_said(settings: dict[str, Any], names: str | None, tmp_path: Path) -> None:
    wanted = nullcontext() if names is None else refused("dagster.queue", match=rf"^dagster\.yaml: .*{names}")
    with DagsterInstance.local_temp(str(tmp_path), overrides=settings) as instance, wanted:
        require_queue(instance)


def test_the_first_failure_is_the_message() -> None:
    @dg.op
    def fails() -> None:
        raise dg.Failure(description="the cause and the cure")

    @dg.op
    def breaks() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    def failure(op: dg.OpDefinition) -> Exception:
        @dg.job(name=f"job_{op.name}")
        def job() -> None:
            op()

        return failure_of(job.execute_in_process(raise_on_error=False).all_events)

    told, defect = failure(fails), failure(breaks)
    assert not isinstance(told, UnforeseenError) and str(told) == "fails: the cause and the cure"
    assert isinstance(defect, UnforeseenError) and (defect.kind, str(defect)) == ("KeyError", "breaks: 'inner'")
    assert "in breaks" in defect.trace and "outer" in defect.trace


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
            [run] = [each for each in instance.get_runs() if each.run_id == run_id]
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
