"""Exactly what is missing or changed runs: 200 samples in 11 shards, one change at a time."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.execution.retries import auto_reexecution_should_retry_run

from gateau_dagster.assets.steps.dead_runs import PROCESS_TAG, process_tag
from gateau_dagster.data.sample import shard_of
from gateau_dagster.errors import GateauError
from gateau_dagster.resources import models
from gateau_dagster.resources.lease import store_lease
from tests.assets.harness import Pipeline, failure_of, key_of, pipeline_on, value_of
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project, sample, write_model, write_samples

SAMPLES, SHARDS = 200, 11  # so that names of shards have two digits
SHARDED = ("raw_long_sft", "perplexity/short", "perplexity/long", "cam")
GLOBAL = ("combined_scores", "selected_subset", "report")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A project of so many samples, run once."""
    file = make_project(tmp_path_factory.mktemp("many"), samples=SAMPLES, shards=SHARDS)
    with pipeline_on(file) as pipeline:
        pipeline.refresh()
        yield pipeline


@pytest.fixture
def data(many: Pipeline) -> Iterator[Path]:
    """The input, as it was again afterwards; everything is up to date at the start."""
    file = many.file.parent / "long.jsonl"
    before = file.read_text(), many.file.read_text()
    many.refresh()
    yield file
    file.write_text(before[0])
    many.file.write_text(before[1])


def records(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def shard_key(sample_id: str) -> str:
    return f"{shard_of(sample_id, SHARDS):02d}"


def test_everything_runs_at_first_and_each_shard_is_recorded_once(many: Pipeline) -> None:
    first = many.runs()[-1]
    events = many.materialised(first.run_id)
    assert len(events) == len(SHARDED) * SHARDS + len(GLOBAL)
    assert len({key_of(event) for event in events}) == len(events)
    scored = [event for event in events if key_of(event)[0] == "cam"]
    assert sum(value_of(event, "samples_computed") for event in scored) == SAMPLES


def test_nothing_changed_does_nothing_in_seconds(many: Pipeline, data: Path) -> None:
    runs = len(many.runs())
    started = time.monotonic()
    result = many.refresh()
    assert result.run_ids == []
    assert result.recorded == 0
    assert time.monotonic() - started < 5
    assert len(many.runs()) == runs, "not even an empty run is created"


def test_one_sample_changed_of_many(many: Pipeline, data: Path) -> None:
    changed = records(data)
    changed[117]["response"] = "something else ."
    write_samples(data, changed)
    shard = shard_key("s00117")

    before = {key: stamp for key, stamp in many.state().recorded().items() if key[1] not in {None, shard}}
    result = many.refresh()

    assert len(result.run_ids) == 1
    events = many.materialised(result.run_ids[0])
    assert sorted(map(key_of, events), key=str) == sorted(
        [*((asset, shard) for asset in SHARDED), *((asset, None) for asset in GLOBAL)], key=str
    )
    computed = {key_of(event)[0]: value_of(event, "samples_computed") for event in events if event.partition}
    assert {name: computed[name] for name in SHARDED[1:]} == dict.fromkeys(SHARDED[1:], 1)
    size = many.state().store.read("raw_long_sft", shard).height
    assert all(value_of(event, "samples_kept") == size - 1 for event in events if key_of(event)[0] == "cam")
    after = many.state().recorded()
    assert before == {key: after[key] for key in before}, "the other shards are as they were"


@pytest.fixture
def no_model(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever loads a model fails, once everything is up to date."""
    loaded = mock.Mock(side_effect=AssertionError("a model was loaded"))
    monkeypatch.setattr("gateau_dagster.models.loading.load_model", loaded)
    models.ModelsResource().release()


@pytest.mark.long
@pytest.mark.usefixtures("no_model")
def test_alpha_loads_no_model(many: Pipeline, data: Path) -> None:
    assert {*many.made(selection={"alpha": 0.31})} == {(name, None) for name in GLOBAL}
    assert many.stamp("combined_scores").inputs["settings"]["selection.alpha"] == 0.31
    write_samples(data, [*records(data), sample(5000)])
    with pytest.raises(GateauError, match="a model was loaded"):  # the sentinel sees one
        many.refresh()


@pytest.mark.usefixtures("no_model")
def test_a_removed_sample_leaves_every_table(many: Pipeline, data: Path) -> None:
    store = many.state().store
    best = store.read("combined_scores").sort("rank")["sample_id"][0]
    write_samples(data, [record for record in records(data) if record["id"] != best])
    assert {part for _, part in many.made()} == {shard_key(best), None}
    for asset in SHARDED:
        assert best not in set(store.read(asset, shard_key(best), ["sample_id"])["sample_id"])
    scores = store.read("combined_scores")
    assert scores.height == SAMPLES - 1
    assert best not in set(scores["sample_id"])
    assert scores["rank"].sort().to_list() == list(range(1, SAMPLES))
    assert best not in set(store.read("selected_subset")["sample_id"])


@pytest.mark.long
def test_operational_settings_and_touched_files_are_no_change(many: Pipeline, data: Path) -> None:
    change_config(
        many.file,
        scoring={"batch_tokens": 777},
        execution={"shards_per_run": 3, "retries": 9, "schedule": "0 1 * * *"},
        training={"save_steps": 7, "gradient_checkpointing": True},
    )
    for file in (data, *(many.file.parent / "long").iterdir()):
        os.utime(file)
    assert many.refresh().run_ids == []


@pytest.mark.long
def test_weights_that_change_in_place(small: Pipeline) -> None:
    folder = small.file.parent
    small.refresh()
    before = small.state().store.read_all("perplexity/short", small.state().shards).sort("sample_id")
    write_model(folder / "short", seed=11, window=64)
    assert [asset for asset, partition in small.made() if partition] == ["perplexity/short"] * 4
    after = small.state().store.read_all("perplexity/short", small.state().shards).sort("sample_id")
    assert after["digest"].equals(before["digest"])
    assert not after["perplexity"].equals(before["perplexity"])


def test_until_stops_at_an_asset(fresh: Pipeline) -> None:
    assert {asset for asset, _ in fresh.made("perplexity/short")} == {"raw_long_sft", "perplexity/short"}
    assert fresh.refresh(until="perplexity/short").run_ids == []
    with refused("usage.asset", match=r"nonsense; .*raw_long_sft, .*report"):
        fresh.refresh(until="nonsense")


def offered(pipeline: Pipeline) -> set[str]:
    """Return the choices that the launchpad of `refresh` offers."""
    job = pipeline.definitions().resolve_job_def("refresh")
    [(name, until)] = job.run_config_schema.config_type.fields.items()  # type: ignore[attr-defined]
    assert (name, until.default_value) == ("until", "all")
    return {each.config_value for each in until.config_type.enum_values}


def test_the_launchpad_offers_the_assets_of_its_project_to_stop_at_and_nothing_else(fresh: Pipeline) -> None:
    """Dagster keeps fields for the whole process, in which another project may have been."""
    change_config(fresh.file, training={"enabled": True})
    assert offered(fresh) == {"all", *fresh.state().pipeline.by_key} > {"checkpoint"}
    change_config(fresh.file, training={"enabled": False})
    assert offered(fresh) == {"all", *fresh.state().pipeline.by_key}
    job = fresh.definitions().resolve_job_def("refresh")
    with pytest.raises(dg.DagsterInvalidConfigError):
        job.execute_in_process(instance=fresh.instance, run_config={"until": "nonsense"})
    assert job.execute_in_process(instance=fresh.instance, run_config={"until": "raw_long_sft"}).success
    plan = fresh.state().plan()
    assert plan.of("raw_long_sft") is None and plan.of("combined_scores") is not None


def test_dagster_tries_none_of_its_runs_again(fresh: Pipeline) -> None:
    """With `run_retries` in dagster.yaml, a retry would work on while whoever asked is told of a failure."""
    fresh.refresh(until="raw_long_sft")
    [run] = fresh.runs()
    failed = run.with_status(DagsterRunStatus.FAILURE)
    with mock.patch.object(DagsterInstance, "run_retries_max_retries", 3):
        assert not auto_reexecution_should_retry_run(fresh.instance, failed, None)
        others = failed.with_tags({"of": "a user's own run"})
        assert auto_reexecution_should_retry_run(fresh.instance, others, None)


def test_only_one_refresh_at_a_time(fresh: Pipeline) -> None:
    """Refuse a refresh of this or another configuration on the same store; a step started by hand waits for none."""
    for other in (str(fresh.file), "/somewhere/other.yaml"):
        with (
            store_lease(fresh.config, other, exclusive=True, say=print),
            pytest.raises(GateauError, match=rf"in use by process {os.getpid()} on .*, with {other}, since "),
        ):
            fresh.refresh()
    assert fresh.refresh(until="raw_long_sft").run_ids


@pytest.mark.long
def test_waits_for_what_an_earlier_refresh_has_left_at_work(fresh: Pipeline) -> None:
    """The refresh was killed; the run that it had launched has a process of its own, and goes on."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as working:
        fresh.refresh(until="raw_long_sft")
        [before] = fresh.runs()
        run = fresh.instance.create_run_for_job(
            fresh.definitions().resolve_job_def("everything"),
            tags={**before.tags, PROCESS_TAG: process_tag(working.pid)},
            status=DagsterRunStatus.STARTED,
        )
        with refused("storage.lease_held", match=run.run_id):
            fresh.refresh()
    assert fresh.refresh(until="perplexity/short").ended_runs == 1


def test_a_step_of_another_configuration_does_not_write_into_a_store_that_is_in_use(fresh: Pipeline) -> None:
    with store_lease(fresh.config, "/somewhere/other.yaml", exclusive=True, say=print):
        result = fresh.execute(["raw_long_sft"], partition_key="0", fails=True)
    assert "in use by process" in str(failure_of(result))
    assert fresh.state().stamp("raw_long_sft", "0") is None
