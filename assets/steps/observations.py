"""Record in Dagster the inputs as they are now, and the outputs that the store holds."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import dagster as dg
from dagster import AssetRecordsFilter, DagsterEventType, DagsterInstance

from gateau_dagster.assets.steps.event_log import recorded_tags, version_tags, with_events
from gateau_dagster.assets.steps.metadata import DATA_VERSION_TAG, table_metadata
from gateau_dagster.assets.steps.partitions import asset_key, figures_only, has_many
from gateau_dagster.pipeline.input_versions import InputVersion, input_versions
from gateau_dagster.pipeline.inputs import Input, inputs_of
from gateau_dagster.pipeline.plan import Key
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp


def record_what_the_store_holds(instance: DagsterInstance, state: State) -> int:
    """Record outputs that are in the store and up to date, but unknown to Dagster; return their number.

    A run killed between a write and its event leaves such an output; so does another Dagster instance on the same
    store. So does a changed setting that makes no difference to an output, since Dagster shows it as stale. Inputs are
    recorded first, since Dagster compares outputs with the known versions of their inputs.
    """
    observe_inputs(instance, state)
    stamps = state.recorded()
    plan = state.whole_plan(stamps)
    stale: set[Key] = {(work.asset, partition) for work in plan.work for partition in work.reasons}
    count = 0
    for asset in state.pipeline.assets:
        known = recorded_tags(instance, state, asset.key)
        for partition in state.pipeline.partitions(asset.key):
            stamp = stamps[asset.key, partition]
            if stamp is None or (asset.key, partition) in stale:
                continue
            tags = version_tags(state, asset.key, partition, stamp, stamps)
            if known.get(partition) != tags:
                made = _materialisation(state, asset.key, partition, stamp, with_events(instance, tags))
                instance.report_runless_asset_event(made)
                count += 1
    return count


def _materialisation(
    state: State, asset: str, partition: str | None, stamp: Stamp, tags: Mapping[str, str]
) -> dg.AssetMaterialization:
    address = state.store.address(asset, partition)
    metadata = {} if stamp.rows is None else table_metadata(address, stamp, whole=partition is None)
    return dg.AssetMaterialization(
        asset_key(state.config, asset),
        partition=partition,
        description="Found up to date in the store; Dagster had no record of it as it is.",
        metadata=figures_only(metadata) if has_many(state.pipeline, asset) else metadata,
        tags=tags,
    )


def observe_inputs(instance: DagsterInstance, state: State) -> int:
    """Record the inputs that changed since the last observation; return the number of records.

    Raises:
        GateauError, TransientError: an input is missing or cannot be reached.
    """
    found = [change for given in inputs_of(state.config) for change in input_changes(instance, state, given)]
    for change in found:
        instance.report_runless_asset_event(change)
    return len(found)


def input_changes(instance: DagsterInstance, state: State, given: Input) -> Iterator[dg.AssetObservation]:
    """Yield an observation of each part of an input that changed since the last observation."""
    known = _known_versions(instance, given, state)
    for partition, found in input_versions(state, given).items():
        if known.get(partition) != found.version:
            yield _observation(asset_key(state.config, given.key), partition, found)


def _known_versions(instance: DagsterInstance, given: Input, state: State) -> Mapping[str | None, str]:
    """Return the versions in the latest observations, by partition."""
    key = asset_key(state.config, given.key)
    if given.partitions:
        shards: list[str] = list(state.shards)
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            key, DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG], asset_partitions=shards
        )
        return {shard: found[DATA_VERSION_TAG] for shard, found in tags.items()}
    records = instance.fetch_observations(AssetRecordsFilter(asset_key=key), limit=1).records
    event = records[0].asset_observation if records else None
    return {} if event is None else {None: (event.tags or {}).get(DATA_VERSION_TAG, "")}


def _observation(key: dg.AssetKey, partition: str | None, found: InputVersion) -> dg.AssetObservation:
    metadata: dict[str, Any] = {
        name: dg.MetadataValue.timestamp(value) if isinstance(value, datetime) else value
        for name, value in found.facts.items()
    }
    if found.rows is not None:
        metadata["dagster/partition_row_count"] = found.rows
    return dg.AssetObservation(key, partition=partition, metadata=metadata, tags={DATA_VERSION_TAG: found.version})
