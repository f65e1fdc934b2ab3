"""Schedule and sensor look at the state; both are off until someone turns them on."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster import DagsterEvent, DagsterEventType, DagsterRunStatus

from gateau_dagster.assets.runs.automation import nightly, out_of_date_sensor, plan_digest
from gateau_dagster.assets.runs.history import runs_at_work
from gateau_dagster.assets.runs.jobs import asset_jobs, refresh_job
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, PROCESS_TAG, process_tag
from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.resources.lease import store_id, store_lease
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import Pipeline
from tests.project import change_config, sample, write_samples


def tick(pipeline: Pipeline) -> dg.RunRequest | dg.SkipReason:
    jobs = [*asset_jobs(pipeline.config), refresh_job(pipeline.config)]
    with dg.build_sensor_context(pipeline.instance, resources={"configuration": pipeline.resource}) as context:
        found = out_of_date_sensor(pipeline.config, jobs).evaluate_tick(context)
    return found.run_requests[0] if found.run_requests else dg.SkipReason(found.skip_message)


def skipped(pipeline: Pipeline) -> str:
    found = tick(pipeline)
    assert isinstance(found, dg.SkipReason)
    return found.skip_message or ""


def change_a_sample(pipeline: Pipeline, text: str = "new .") -> None:
    records = [sample(number) for number in range(24)]
    records[5]["response"] = text
    write_samples(pipeline.file.parent / "long.jsonl", records)


def launched(pipeline: Pipeline, digest: str, status: DagsterRunStatus, **tags: str) -> str:
    run = pipeline.instance.create_run_for_job(
        refresh_job(pipeline.config), tags={PLAN_TAG: digest, **tags}, status=status
    )
    return run.run_id


def test_both_are_off_until_turned_on(small: Pipeline) -> None:
    repository = small.definitions().get_repository_def()
    statuses = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    assert statuses["out_of_date"] == dg.DefaultSensorStatus.STOPPED
    assert statuses["dead_runs"] == dg.DefaultSensorStatus.RUNNING, "it launches nothing"
    assert [schedule.default_status for schedule in repository.schedule_defs] == [dg.DefaultScheduleStatus.STOPPED]


def test_the_page_of_each_asset_that_the_sensor_drives_shows_it(current: Pipeline) -> None:
    repository = current.definitions().get_repository_def()
    targets = {target.job_name for target in repository.get_sensor_def("out_of_date").targets}
    jobs = {name: repository.get_job(name) for name in targets}
    made = {key.to_user_string() for job in jobs.values() for key in job.asset_layer.executable_asset_keys}
    assert made >= current.state().pipeline.required
    change_a_sample(current)
    request = tick(current)
    assert isinstance(request, dg.RunRequest) and request.job_name == "refresh", "it launches no other"


def test_the_schedule_follows_the_configuration(current: Pipeline) -> None:
    change_config(current.file, execution={"schedule": "30 4 * * 1", "timezone": "Europe/Berlin"})
    schedule = current.definitions().get_repository_def().get_schedule_def("nightly_refresh")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 4 * * 1", "Europe/Berlin")
    assert schedule.job_name == "refresh"


def test_ten_ticks_with_one_edit_are_one_run_and_nine_skips(current: Pipeline) -> None:
    """Tick each minute; the run goes on over two ticks."""
    change_config(current.file, execution={"schedule": "* * * * *"})
    schedule, run, results = nightly(current.config), "", []
    for minute in range(10):
        if minute == 3:
            change_a_sample(current)
        if minute == 6:  # what the daemon does meanwhile
            current.refresh()
            success = DagsterEvent(DagsterEventType.RUN_SUCCESS.value, job_name="refresh")
            current.instance.report_dagster_event(success, run)
        with dg.build_schedule_context(
            instance=current.instance,
            resources={"configuration": current.resource},
            scheduled_execution_time=datetime(2026, 1, 1, 12) + timedelta(minutes=minute),
        ) as context:
            found = schedule.evaluate_tick(context)
        results.append(found.skip_message or f"{len(found.run_requests or [])} run")
        if found.run_requests:
            run = launched(current, found.run_requests[0].tags[PLAN_TAG], DagsterRunStatus.STARTED)
    nothing, working = "everything is up to date", f"at work: refresh, in run {run}"
    assert results == [nothing] * 3 + ["1 run"] + [working] * 2 + [nothing] * 4


def test_a_change_is_seen_at_every_tick_until_it_is_mended(current: Pipeline) -> None:
    change_a_sample(current)
    first, second = tick(current), tick(current)
    assert isinstance(first, dg.RunRequest) and isinstance(second, dg.RunRequest)
    digest = plan_digest(current.state().plan(), store_id(current.config))
    assert first.tags[PLAN_TAG] == second.tags[PLAN_TAG] == digest
    assert first.run_key is None, "a run key would launch one difference only once for ever"
    current.refresh()
    assert skipped(current) == "everything is up to date"


@pytest.mark.parametrize("job", ["refresh", "everything"])
def test_waits_for_work_that_is_under_way(current: Pipeline, job: str) -> None:
    change_a_sample(current)
    run = current.instance.create_run_for_job(
        current.definitions().resolve_job_def(job), tags={PROCESS_TAG: process_tag()}, status=DagsterRunStatus.STARTED
    )
    assert skipped(current) == f"at work: {job}, in run {run.run_id}"


def test_does_not_wait_for_a_run_on_another_store(current: Pipeline) -> None:
    """Two projects may keep their records in one database; `gateau status` shows those of its own."""
    change_a_sample(current)
    process = {PROCESS_TAG: process_tag()}
    launched(current, "x", DagsterRunStatus.STARTED, **process, **{LOCK_TAG: "another store"})
    assert isinstance(tick(current), dg.RunRequest) and runs_at_work(current.instance, current.config) == []
    ours = launched(current, "x", DagsterRunStatus.STARTED, **process, **{LOCK_TAG: store_id(current.config)})
    assert skipped(current) == f"at work: refresh, in run {ours}"
    assert [run.run_id for run in runs_at_work(current.instance, current.config)] == [ours]


def test_waits_for_whoever_has_the_store(current: Pipeline) -> None:
    """Also `gateau run` of another configuration, whose runs stand in another Dagster home."""
    change_a_sample(current)
    with store_lease(current.config, "/somewhere/other.yaml", exclusive=True, say=print):
        assert "/somewhere/other.yaml" in skipped(current)
    assert isinstance(tick(current), dg.RunRequest)


def test_does_not_wait_for_a_dead_run(current: Pipeline) -> None:
    change_a_sample(current)
    identity = ProcessIdentity.of()
    gone = replace(identity, start_ticks=identity.start_ticks - 1000).to_text()
    dead = launched(current, "x", DagsterRunStatus.STARTED, **{PROCESS_TAG: gone})
    assert isinstance(tick(current), dg.RunRequest)
    run = current.instance.get_run_by_id(dead)
    assert run is not None
    assert run.status is DagsterRunStatus.FAILURE


@pytest.mark.parametrize(("end", "how"), [("report_run_failed", "failed"), ("report_run_canceled", "was terminated")])
def test_does_not_repeat_a_failure_every_minute(current: Pipeline, end: str, how: str) -> None:
    change_a_sample(current, f"{how} .")
    digest = plan_digest(current.state().plan(), store_id(current.config))
    failed = launched(current, digest, DagsterRunStatus.STARTED)
    getattr(current.instance, end)(current.instance.get_run_by_id(failed))
    assert skipped(current).startswith(f"refresh {how} in run {failed} ")
    record = current.instance.get_run_record_by_id(failed)
    assert record is not None and record.end_time is not None
    with mock.patch("gateau_dagster.assets.runs.automation.time.time", return_value=record.end_time + 1801):
        assert isinstance(tick(current), dg.RunRequest)
    # Other work, here a removed sample, is tried at once.
    write_samples(current.file.parent / "long.jsonl", [sample(number) for number in range(22)])
    assert isinstance(tick(current), dg.RunRequest)


def test_an_input_that_cannot_be_read_is_the_reason(current: Pipeline) -> None:
    (current.file.parent / "long.jsonl").rename(current.file.parent / "away")
    try:
        assert skipped(current).startswith("cannot determine what is out of date: ")
    finally:
        Path(current.file.parent / "away").rename(current.file.parent / "long.jsonl")
