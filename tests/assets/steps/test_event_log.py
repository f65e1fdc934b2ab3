"""Dagster is told of what the store holds and it does not know of: one event each, with the right version."""

import pytest
from dagster import DagsterInstance

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.assets.steps.observations import record_what_the_store_holds
from gateau_dagster.pipeline.inputs import inputs_of
from tests.assets.harness import Pipeline, asset_key, versions_on_record


def test_another_instance_on_the_same_store_learns_everything(small: Pipeline) -> None:
    small.refresh()
    state = small.state()
    with DagsterInstance.ephemeral() as other:
        assert record_what_the_store_holds(other, state) == 4 * 4 + 3
        assert record_what_the_store_holds(other, small.state()) == 0, "only once"
        stored = {key: stamp.fingerprint for key, stamp in state.recorded().items() if stamp is not None}
        told = {asset: versions_on_record(other, state, asset) for asset in state.pipeline.by_key}
        assert {(asset, part): version for asset, found in told.items() for part, version in found.items()} == stored


def test_the_log_is_asked_once_an_asset_not_once_a_shard(small: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    small.refresh()
    log, state, asked = small.instance.event_log_storage, small.state(), []
    connect = log.index_connection  # type: ignore[attr-defined]
    monkeypatch.setattr(log, "index_connection", lambda: asked.append(1) or connect())
    assert record_what_the_store_holds(small.instance, state) == 0
    assert len(asked) <= 3 * (len(state.pipeline.assets) + len(inputs_of(state.config)))


def test_what_is_out_of_date_is_not_recorded(small: Pipeline) -> None:
    small.refresh()
    state = small.state()
    (small.file.parent / "store" / "cam" / "1.parquet").unlink()
    try:
        with DagsterInstance.ephemeral() as other:
            record_what_the_store_holds(other, state)
            assert set(versions_on_record(other, state, "cam")) == {"0", "2", "3"}
            assert versions_on_record(other, state, "combined_scores") != {}, "made from fingerprints that still hold"
    finally:
        small.refresh()


def test_a_lost_dagster_home_is_filled_again(small: Pipeline) -> None:
    small.refresh()
    with open_instance(small.config) as instance:
        instance.wipe_assets([asset_key(asset) for asset in small.state().pipeline.by_key])
    result = small.refresh()
    assert result.run_ids == []
    assert result.recorded == 4 * 4 + 3
