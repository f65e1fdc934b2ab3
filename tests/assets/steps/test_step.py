"""One event a shard, with the shard's own data version, however the run was asked for."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from gateau_dagster.assets.steps.partitions import partition_definitions
from tests.assets.harness import Pipeline, asset_key, key_of, value_of, version_of, versions_on_record
from tests.project import sample, write_samples

SHARDED = ["raw_long_sft", "perplexity/short", "perplexity/long", "cam"]


def execute(pipeline: Pipeline, assets: list[str], **options: object) -> list[dg.AssetMaterialization]:
    """A run as the UI launches it: chosen assets, a partition or a range."""
    job = (
        pipeline.definitions().resolve_job_def("everything").get_subset(asset_selection={asset_key(a) for a in assets})
    )
    done = job.execute_in_process(instance=pipeline.instance, **options)  # type: ignore[arg-type]
    assert done.success
    return pipeline.materialised(done.run_id)


def in_range(first: str, last: str) -> dict[str, str]:
    return {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}


def assert_own_versions(pipeline: Pipeline, events: list[dg.AssetMaterialization]) -> None:
    """Each shard once, under the fingerprint of its stamp."""
    stamps = pipeline.state().recorded()
    assert len(set(map(key_of, events))) == len(events), "an output was recorded twice"
    for event in events:
        stamp = stamps[key_of(event)]
        assert stamp is not None
        assert version_of(event) == stamp.fingerprint
        assert value_of(event, "fingerprint") == stamp.fingerprint


def test_the_partitions_are_the_shards(small: Pipeline) -> None:
    assert partition_definitions(small.config)["shard"].get_partition_keys() == ["0", "1", "2", "3"]


def test_a_single_partition(fresh: Pipeline) -> None:
    events = execute(fresh, SHARDED, partition_key="1")
    assert [key_of(event)[1] for event in events] == ["1"] * 4
    assert_own_versions(fresh, events)


def test_a_range(fresh: Pipeline) -> None:
    events = execute(fresh, SHARDED[:3], tags=in_range("1", "2"))
    assert sorted(map(key_of, events)) == sorted((asset, shard) for asset in SHARDED[:3] for shard in ("1", "2"))
    assert_own_versions(fresh, events)
    versions = versions_on_record(fresh.instance, fresh.state(), "perplexity/short")
    assert set(versions) == {"1", "2"}
    assert len(set(versions.values())) == 2, "not one version for all"


def test_all_shards_and_the_global_assets(small: Pipeline) -> None:
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
    job = fresh.definitions().resolve_job_def("everything").get_subset(asset_selection={asset_key("cam")})
    done = job.execute_in_process(instance=fresh.instance, partition_key="0", raise_on_error=False)
    failure = next(event for event in done.all_events if event.is_step_failure).step_failure_data.user_failure_data
    assert failure is not None
    assert "cam[0] needs raw_long_sft[0], which is not in the store" in (failure.description or "")
