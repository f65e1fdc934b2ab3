"""One event a shard, with its own data version, however the run was asked for; a run that is to end goes on no more."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dagster as dg
import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.errors import DagsterExecutionInterruptedError
from sqlalchemy.exc import OperationalError

from gateau_dagster.assets.steps import step as termination
from gateau_dagster.assets.steps.partitions import partition_definitions
from gateau_dagster.assets.steps.step import heed_termination, heeding
from tests.assets.harness import (
    Pipeline,
    asset_key,
    empty_job,
    failure_of,
    in_range,
    key_of,
    value_of,
    version_of,
    versions_on_record,
)
from tests.kit.project import sample, write_samples

SHARDED = ["raw_long_sft", "perplexity/short", "perplexity/long", "cam"]


def execute(pipeline: Pipeline, assets: list[str], **options: Any) -> list[dg.AssetMaterialization]:
    """Run these assets and return their materialisations."""
    return pipeline.materialised(pipeline.execute(assets, **options).run_id)


def assert_own_versions(pipeline: Pipeline, events: list[dg.AssetMaterialization]) -> None:
    """Each shard once, under the fingerprint of its stamp."""
    stamps = pipeline.state().recorded()
    versions = {key: stamp.fingerprint for key, stamp in stamps.items() if stamp is not None}
    assert len(set(map(key_of, events))) == len(events), "an output was recorded twice"
    for event in events:
        assert version_of(event) == value_of(event, "fingerprint") == versions[key_of(event)]


def test_a_single_partition_and_a_range(fresh: Pipeline) -> None:
    for shards, options in ((["1"], {"partition_key": "1"}), (["1", "2"], {"tags": in_range("1", "2")})):
        events = execute(fresh, SHARDED[:3], **options)
        assert sorted(map(key_of, events)) == sorted((asset, shard) for asset in SHARDED[:3] for shard in shards)
        assert_own_versions(fresh, events)
    versions = versions_on_record(fresh.instance, fresh.state(), "perplexity/short")
    assert {*versions} == {"1", "2"} and len({*versions.values()}) == 2, "not one version for all"
    versions = versions_on_record(fresh.instance, fresh.state(), "perplexity/short")
    assert set(versions) == {"1", "2"}
    assert len(set(versions.values())) == 2, "not one version for all"


def test_all_shards_and_the_global_assets(small: Pipeline) -> None:
    assert partition_definitions(small.state().pipeline)["shard"].get_partition_keys() == ["0", "1", "2", "3"]
    events = small.materialised(small.runs()[-1].run_id)
    assert len(events) == 4 * 4 + 3
    assert_own_versions(small, events)
    partitions = {asset: small.instance.get_materialized_partitions(asset_key(asset)) for asset in SHARDED}
    assert partitions == {key: {"0", "1", "2", "3"} for key in SHARDED}


def test_who_asks_for_a_current_shard_gets_a_record(small: Pipeline) -> None:
    """A backfill would take a shard without a record of its own for a failed one."""
    small.refresh()
    events = execute(small, ["cam"], tags=in_range("0", "3"))
    assert [key_of(event) for event in events] == [("cam", shard) for shard in ("0", "1", "2", "3")]
    assert all(value_of(event, "up_to_date") == "kept: no change" for event in events)
    assert_own_versions(small, events)


@pytest.fixture
def changed(small: Pipeline) -> Iterator[Path]:
    """The first and the last shard have changed samples."""
    data = small.file.parent / "long.jsonl"
    before = data.read_text()
    small.refresh()
    state = small.state()
    first, last = (state.store.read("raw_long_sft", shard)["sample_id"][0] for shard in ("0", "3"))
    records = [sample(number) for number in range(24)]
    write_samples(data, [r | {"response": "x ."} if r["id"] in {first, last} else r for r in records])
    yield data
    data.write_text(before)


def test_refresh_passes_over_current_shards_of_its_range(small: Pipeline, changed: Path) -> None:
    events = small.materialised(small.refresh().run_ids[0])
    assert {key_of(event)[1] for event in events} == {"0", "3", None}
    assert [value_of(event, "samples_computed") for event in events if key_of(event)[0] == "cam"] == [1, 1]


def test_a_downstream_shard_without_its_upstream_says_what_to_do(fresh: Pipeline) -> None:
    said = failure_of(fresh.execute(["cam"], partition_key="0", fails=True))
    assert "cam[0] needs raw_long_sft[0], which is not in the store" in (said or "")


@pytest.fixture
def context() -> Iterator[Any]:
    with DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(empty_job, status=DagsterRunStatus.STARTED)
        yield SimpleNamespace(instance=instance, run_id=run.run_id)


def ask_to_end(context: Any) -> None:
    run = context.instance.get_run_by_id(context.run_id)
    assert run is not None
    context.instance.report_run_canceling(run)


def test_within_a_step(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_SECONDS_BETWEEN_LOOKS", 0.0)
    told = []

    def progress(done: float, *_: object, **__: object) -> None:
        told.append(done)

    report = heeding(context, progress)
    report(1, 3, "samples")
    ask_to_end(context)
    with pytest.raises(DagsterExecutionInterruptedError):
        report(2, 3, "samples")
    assert told == [1, 2]


def test_reports_of_other_threads_do_not_keep_it_from_being_heard(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "_SECONDS_BETWEEN_LOOKS", 0.2)
    report = heeding(context, lambda *_, **__: None)
    ask_to_end(context)
    time.sleep(0.3)
    with ThreadPoolExecutor(1) as other:
        other.submit(report, 1, 3, "samples").result()
    with pytest.raises(DagsterExecutionInterruptedError):
        report(2, 3, "samples")


def test_a_step_begins_until_its_run_is_to_end_and_where_the_records_are_out_of_reach(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heed_termination(context)
    ask_to_end(context)
    with monkeypatch.context() as patch:
        starting = OperationalError("select", None, ConnectionError("the server is starting"))
        patch.setattr(DagsterInstance, "get_run_by_id", mock.Mock(side_effect=starting))
        heed_termination(context)
    with pytest.raises(DagsterExecutionInterruptedError):
        heed_termination(context)
