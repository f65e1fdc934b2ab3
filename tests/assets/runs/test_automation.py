"""The sensor looks at the state; the schedule and it are off until someone turns them on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from assets.runs.automation import out_of_date_sensor, plan_digest
from assets.runs.jobs import refresh_job
from assets.steps.dead_runs import PROCESS_TAG, process_tag
from assets.steps.event_log import PLAN_TAG
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import Pipeline
from tests.project import change_config, sample, write_samples


@pytest.fixture
def current(small: Pipeline) -> Iterator[Pipeline]:
    """Up to date at the start; configuration and input as they were again afterwards."""
    small.refresh()
    data = small.file.parent / "long.jsonl"
    before = data.read_text(), small.file.read_text()
    yield small
    data.write_text(before[0])
    small.file.write_text(before[1])
    for run in small.runs():
        if not run.is_finished:
            small.instance.report_run_failed(run)


def tick(pipeline: Pipeline) -> dg.RunRequest | dg.SkipReason:
    context = dg.build_sensor_context(instance=pipeline.instance, resources={"configuration": pipeline.resource})
    found = out_of_date_sensor(context)
    assert isinstance(found, dg.RunRequest | dg.SkipReason)
    return found


def skipped(pipeline: Pipeline) -> str:
    found = tick(pipeline)
    assert isinstance(found, dg.SkipReason)
    return found.skip_message or ""


def change_a_sample(pipeline: Pipeline, text: str = "new .") -> None:
    records = [sample(number) for number in range(24)]
    records[5]["response"] = text
    write_samples(pipeline.file.parent / "long.jsonl", records)


def launched(pipeline: Pipeline, digest: str, status: DagsterRunStatus, **tags: str) -> str:
    run = pipeline.instance.create_run_for_job(refresh_job, tags={PLAN_TAG: digest, **tags}, status=status)
    return run.run_id


def test_both_are_off_until_turned_on(small: Pipeline) -> None:
    repository = small.definitions().get_repository_def()
    statuses = {sensor.name: sensor.default_status for sensor in repository.sensor_defs}
    assert statuses["out_of_date"] == dg.DefaultSensorStatus.STOPPED
    assert statuses["dead_runs"] == dg.DefaultSensorStatus.RUNNING, "it launches nothing"
    assert [schedule.default_status for schedule in repository.schedule_defs] == [dg.DefaultScheduleStatus.STOPPED]


def test_the_schedule_follows_the_configuration(current: Pipeline) -> None:
    change_config(current.file, execution={"schedule": "30 4 * * 1"})
    schedule = current.definitions().get_repository_def().get_schedule_def("nightly_refresh")
    assert schedule.cron_schedule == "30 4 * * 1"
    assert schedule.job_name == "refresh"


def test_nothing_changed(current: Pipeline) -> None:
    assert skipped(current) == "everything is up to date"


def test_a_change_is_seen_at_every_tick_until_it_is_mended(current: Pipeline) -> None:
    change_a_sample(current)
    first, second = tick(current), tick(current)
    assert isinstance(first, dg.RunRequest)
    assert isinstance(second, dg.RunRequest)
    assert first.tags[PLAN_TAG] == second.tags[PLAN_TAG] == plan_digest(current.state().plan())
    assert first.run_key is None, "a run key would launch one difference only once for ever"
    current.refresh()
    assert skipped(current) == "everything is up to date"


def test_a_removed_sample_is_seen(current: Pipeline) -> None:
    write_samples(current.file.parent / "long.jsonl", [sample(number) for number in range(23)])
    assert isinstance(tick(current), dg.RunRequest)


@pytest.mark.parametrize("job", ["refresh", "everything"])
def test_waits_for_work_that_is_under_way(current: Pipeline, job: str) -> None:
    change_a_sample(current)
    definition = refresh_job if job == "refresh" else current.definitions().resolve_job_def("everything")
    run = current.instance.create_run_for_job(
        definition, tags={PROCESS_TAG: process_tag()}, status=DagsterRunStatus.STARTED
    )
    assert skipped(current) == f"{job} is at work in run {run.run_id}"


def test_does_not_wait_for_a_dead_run(current: Pipeline) -> None:
    change_a_sample(current)
    identity = ProcessIdentity.of()
    gone = replace(identity, start_ticks=identity.start_ticks - 1000).to_text()
    dead = launched(current, "x", DagsterRunStatus.STARTED, **{PROCESS_TAG: gone})
    assert isinstance(tick(current), dg.RunRequest)
    run = current.instance.get_run_by_id(dead)
    assert run is not None
    assert run.status is DagsterRunStatus.FAILURE


def test_does_not_repeat_a_failure_every_minute(current: Pipeline) -> None:
    change_a_sample(current, "fails .")
    digest = plan_digest(current.state().plan())
    failed = launched(current, digest, DagsterRunStatus.STARTED)
    run = current.instance.get_run_by_id(failed)
    assert run is not None
    current.instance.report_run_failed(run)
    assert skipped(current).startswith(f"refresh failed at exactly this work in run {failed}; tried again 30 minutes")
    with mock.patch("assets.runs.automation.time.time", return_value=run_end(current, failed) + 1801):
        assert isinstance(tick(current), dg.RunRequest)
    # Other work is tried at once.
    write_samples(current.file.parent / "long.jsonl", [sample(number) for number in range(22)])
    assert isinstance(tick(current), dg.RunRequest)


def run_end(pipeline: Pipeline, run_id: str) -> float:
    record = pipeline.instance.get_run_record_by_id(run_id)
    assert record is not None
    assert record.end_time is not None
    return record.end_time


def test_an_input_that_cannot_be_read_is_the_reason(current: Pipeline) -> None:
    (current.file.parent / "long.jsonl").rename(current.file.parent / "away")
    try:
        assert skipped(current).startswith("cannot tell what is out of date: ")
    finally:
        Path(current.file.parent / "away").rename(current.file.parent / "long.jsonl")
