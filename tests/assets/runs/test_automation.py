"""The schedule and the sensors launch what is out of date once, and show changed inputs."""

import json
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster import AssetRecordsFilter, DagsterEvent, DagsterEventType, DagsterRunStatus
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from polars.exceptions import PanicException

from gateau_dagster.assets.runs.automation import Looks, inputs_sensor, nightly, out_of_date_sensor, plan_digest
from gateau_dagster.assets.runs.history import runs_at_work
from gateau_dagster.assets.runs.jobs import asset_jobs, refresh_job
from gateau_dagster.assets.steps.dead_runs import LOCK_TAG, PROCESS_TAG, process_tag
from gateau_dagster.assets.steps.event_log import PLAN_TAG
from gateau_dagster.config import Config
from gateau_dagster.data.sample import shard_of
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.lease import store_id, store_lease
from gateau_dagster.storage.process_identity import ProcessIdentity
from tests.assets.harness import Pipeline, key_of
from tests.kit.project import change_config, sample, write_samples


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


@pytest.mark.long
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


def look(pipeline: Pipeline, cursor: str | None) -> tuple[str, str | None]:
    """Return the text of the sensor's answer, and the cursor for the next look."""
    resources = {"configuration": pipeline.resource}
    with dg.build_sensor_context(pipeline.instance, cursor, resources=resources) as context:
        found = inputs_sensor(pipeline.config).evaluate_tick(context)
    return found.skip_message or "", found.cursor


def observed(pipeline: Pipeline, key: str) -> list[dg.AssetObservation]:
    """The latest first."""
    wanted = AssetRecordsFilter(asset_key=dg.AssetKey(key.split("/")))
    records = pipeline.instance.fetch_observations(wanted, limit=100).records
    return [record.asset_observation for record in records if record.asset_observation is not None]


def passing(pipeline: Pipeline) -> dict[str, bool]:
    """Return whether the check `up_to_date` of each asset passed last."""
    assets = pipeline.state().pipeline.assets
    keys = [dg.AssetCheckKey(dg.AssetKey(asset.key.split("/")), "up_to_date") for asset in assets]
    records = pipeline.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    return {
        key.asset_key.to_user_string(): record.evaluation.passed
        for key, record in records.items()
        if record.evaluation is not None
    }


def test_an_edit_shows_where_it_counts_and_a_run_mends_it(current: Pipeline) -> None:
    said, cursor = look(current, None)
    assert look(current, cursor) == ("input, models and store did not change", cursor)
    assert {*passing(current).values()} == {True}
    before = len(observed(current, "input/long_sft"))

    records = [sample(number) for number in range(24)]
    records[5]["response"] = "new ."
    write_samples(current.file.parent / "long.jsonl", records)
    said, later = look(current, cursor)
    assert later not in (None, cursor) and said.startswith("1 new version of inputs")
    new = observed(current, "input/long_sft")
    shard = f"{shard_of('s00005', 4)}"
    assert len(new) == before + 1 and new[0].partition == shard
    rows = current.state().stamp("raw_long_sft", shard)
    assert rows is not None and new[0].metadata["dagster/partition_row_count"].value == rows.rows
    assert {"files", "size_bytes", "last_change"} <= {*new[0].metadata}
    stale = {asset for asset, passed in passing(current).items() if not passed}
    assert stale == {work.asset for work in current.state().whole_plan().work}

    current.refresh()
    assert {*passing(current).values()} == {True}
    assert look(current, later)[0] == "0 new versions of inputs, 0 new findings"


@pytest.mark.long
def test_a_changed_setting_shows_though_no_input_changed(current: Pipeline) -> None:
    _, cursor = look(current, None)
    change_config(current.file, selection={"fraction": 0.5})
    said, _ = look(current, cursor)
    assert said.startswith("0 new versions of inputs")
    assert not passing(current)["selected_subset"] and passing(current)["combined_scores"]


def stale(pipeline: Pipeline) -> dict[tuple[str, str | None], set[str]]:
    """The outputs that Dagster shows as stale, and why."""
    graph = pipeline.definitions().resolve_asset_graph()
    resolver = CachingStaleStatusResolver(pipeline.instance, graph, LoadingContextForTest(pipeline.instance))
    outputs = [(asset.key, part) for asset in pipeline.state().pipeline.assets
               for part in pipeline.state().pipeline.partitions(asset.key)]  # fmt: skip
    causes = {(key, part): resolver.get_stale_causes(dg.AssetKey(key.split("/")), part) for key, part in outputs}
    return {output: {cause.reason for cause in found} for output, found in causes.items() if found}


def test_a_changed_setting_is_stale_on_the_graph_until_it_is_run(current: Pipeline) -> None:
    look(current, None)
    assert stale(current) == {}
    change_config(current.file, selection={"fraction": 0.5})
    assert stale(current) == {(key, None): {"has a new code version"} for key in ("selected_subset", "report")}
    change_config(current.file, scoring={"segment_length": 5})
    shards = {("cam", shard) for shard in current.state().shards}
    assert {*stale(current)} >= shards | {(key, None) for key in ("combined_scores", "selected_subset", "report")}
    assert ("raw_long_sft", "0") not in stale(current)
    assert ("perplexity/short", "0") in stale(current), "a setting of scoring, as far as Dagster knows"
    [run] = current.refresh().run_ids
    assert "perplexity/short" not in {key_of(event)[0] for event in current.materialised(run)}
    assert stale(current) == {}, "the perplexities are recorded anew"


@pytest.mark.long
def test_a_record_of_an_earlier_version_is_stale_until_the_next_refresh(current: Pipeline) -> None:
    state = current.state()
    for key, part, code in (("selected_subset", None, {"dagster/code_version": "1"}), ("cam", "0", {})):
        made = state.stamp(key, part)
        assert made is not None
        tags = {"dagster/data_version": made.fingerprint, **code}
        event = dg.AssetMaterialization(dg.AssetKey(key), partition=part, tags=tags)
        current.instance.report_runless_asset_event(event)
    assert "has a new code version" in stale(current)["selected_subset", None]
    result = current.refresh()
    assert (result.run_ids, result.recorded) == ([], 2) and stale(current) == {}


def test_what_cannot_be_read_is_said_and_looked_at_again(current: Pipeline) -> None:
    _, cursor = look(current, None)
    data = current.file.parent / "long.jsonl"
    data.rename(data.with_suffix(".away"))
    said, after = look(current, cursor)
    assert said.startswith("cannot read the state: ") and "long.jsonl" in said and after == cursor
    data.with_suffix(".away").rename(data)


def test_every_input_is_observed_once_a_version_and_dagster_knows_which_it_is(current: Pipeline) -> None:
    look(current, None)
    graph = current.definitions().resolve_asset_graph()
    inputs = {"input/long_sft", "input/short_model", "input/long_model"}
    assert {key.to_user_string() for key in graph.observable_asset_keys} == inputs
    for key in inputs:
        versions: dict[str | None, list[str]] = {}
        for each in observed(current, key):
            versions.setdefault(each.partition, []).append((each.tags or {})["dagster/data_version"])
        assert versions and all(one != other for found in versions.values() for one, other in pairwise(found))
    resolver = CachingStaleStatusResolver(current.instance, graph, LoadingContextForTest(current.instance))
    version = resolver.get_current_data_version(dg.AssetKey(["input", "short_model"])).value
    assert version == current.state().model_digests["short"]
    labels = {key.to_user_string(): resolver.get_status(key) for key in graph.get_all_asset_keys()}
    assert {*labels.values()} == {StaleStatus.FRESH}, labels


def test_an_input_can_be_looked_at_by_itself(current: Pipeline) -> None:
    look(current, None)
    (current.file.parent / "long.jsonl").write_text("".join(f"{json.dumps(sample(n))}\n" for n in range(25)))
    key, before = dg.AssetKey(["input", "long_sft"]), len(observed(current, "input/long_sft"))
    job = current.definitions().resolve_implicit_global_asset_job_def().get_subset(asset_selection={key})
    assert job.execute_in_process(instance=current.instance).success
    shards = [each.partition for each in observed(current, "input/long_sft")][: -before or None]
    assert shards == [f"{shard_of('s00024', 4)}"]


LONG = 60.0


def test_a_look_is_taken_up_by_a_later_tick_and_counts_no_more_under_another_sign(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, looked = threading.Event(), list[Path]()

    def whole_plan(state: State, _: object) -> Plan:
        looked.append(state.config.folder)
        assert go_on.wait(LONG)
        return Plan(work=[])

    monkeypatch.setattr(State, "whole_plan", whole_plan)
    looks = Looks()
    assert looks.plan(config, "a sign", 0.0) is None
    go_on.set()
    found = looks.plan(config, "a sign", LONG)
    assert found is not None and found[1].work == [] and len(looked) == 1
    go_on.clear()
    assert looks.plan(config, "before", 0.0) is None
    go_on.set()
    assert looks.plan(config, "now", LONG) is None, "the look at what was there before is over"
    assert looks.plan(config, "now", LONG) is not None


@pytest.mark.parametrize(
    "error", [GateauError("data.missing", "no input"), RuntimeError("a defect"), PanicException("in Rust")]
)
def test_a_look_that_failed_is_over(config: Config, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*_: object) -> Plan:
        raise error

    looks = Looks()
    with monkeypatch.context() as patch:
        patch.setattr(State, "whole_plan", fails)
        with pytest.raises(type(error), match=str(error)):
            looks.plan(config, "a sign", LONG)
    assert looks.plan(config, "a sign", LONG) is not None
