"""Test the work of a run on a plan, the message at its end, and its termination."""

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, DefaultRunLauncher
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.runs.launching import (
    canceled_when_interrupted,
    failure_of,
    location_origin,
    require_queue,
    work_run,
)
from gateau_dagster.assets.runs.run_launcher import RunLauncher
from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG
from gateau_dagster.config import Config
from gateau_dagster.errors import UnforeseenError
from gateau_dagster.execution.interruption import ENDING
from gateau_dagster.pipeline.plan import Plan, Work
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import Pipeline, empty_job
from tests.kit.error_codes import refused

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


class CheckingLauncher(DefaultRunLauncher):
    """Knows no worker, as launchers on Kubernetes, ECS, Docker or Ray know none of a run that they did not launch."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND)


def test_dagster_fails_a_run_for_which_its_launcher_has_no_worker(tmp_path: Path) -> None:
    """Therefore the queue launches the runs of the work, and `refresh` does not execute them in its process."""
    launcher = {"module": CheckingLauncher.__module__, "class": CheckingLauncher.__name__}
    with DagsterInstance.local_temp(str(tmp_path), overrides={"run_launcher": launcher}) as instance:
        run = instance.create_run_for_job(empty_job, status=DagsterRunStatus.STARTED)
        record = instance.get_run_record_by_id(run.run_id)
        assert record is not None
        monitor_started_run(instance, mock.Mock(), record, logging.getLogger())
        assert [each.status for each in instance.get_runs()] == [DagsterRunStatus.FAILURE]


def test_dagster_refuses_a_job_with_two_partition_sets() -> None:
    """Therefore `refresh` launches up to three jobs in turn, and no schedule or sensor can request all the work."""

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["0", "1"]))
    def cam() -> None: ...

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["full"]))
    def variant() -> None: ...

    definitions = dg.Definitions([cam, variant], jobs=[dg.define_asset_job("both")])
    with pytest.raises(dg.DagsterInvalidDefinitionError) as refusal:
        definitions.resolve_job_def("both")
    assert "different partitions definitions" in str(refusal.value.__cause__)


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


def test_reasons_are_named_once_with_their_shards(small: Pipeline) -> None:
    shards: dict[str | None, str] = {"1": "changed: input", "2": "missing", "3": "changed: input"}
    work = [Work(asset="cam", reasons=shards), Work(asset="report", reasons={None: "waits for cam"})]
    run = work_run(small.state(), Plan(work=work))
    assert run.why.splitlines() == ["cam: shards 1, 3 changed: input; shard 2 missing", "report: waits for cam"]
    assert (run.job, [key.to_user_string() for key in run.assets]) == ("everything", ["cam", "report"])
    assert [run.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")] == ["1", "3"]


def test_a_long_plan_is_cut_short(small: Pipeline) -> None:
    many = [Work(asset="report", reasons={None: "missing"})] * 100
    assert len(work_run(small.state(), Plan(work=many)).why.splitlines()) < 60
