"""Inputs in Dagster: external assets, and the record of which version of each is there."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg
from dagster import AssetRecordsFilter, DagsterEventType, DagsterInstance

from assets.steps.metadata import DATA_VERSION_TAG
from assets.steps.partitions import asset_key, partition_definitions
from gateau_dagster.config import Config
from gateau_dagster.pipeline.input_versions import InputVersion, input_versions
from gateau_dagster.pipeline.inputs import Input, inputs_of
from gateau_dagster.pipeline.state import State


def input_specs(config: Config) -> list[dg.AssetSpec]:
    """External assets: what raw_long_sft, models and texts are made from."""
    partitions = partition_definitions(config)
    return [
        dg.AssetSpec(
            asset_key(each.key),
            description=f"{each.key}: {each.summary} ({each.path}). Looked at by the sensor `inputs` and by every run.",
            group_name=each.key.split("/", maxsplit=1)[0],
            kinds=set(each.kinds),
            metadata={"path": each.path},
            partitions_def=partitions[each.partitions] if each.partitions else None,
        )
        for each in inputs_of(config)
    ]


def observe_inputs(instance: DagsterInstance, state: State) -> list[str]:
    """Records the inputs that are not what they were when they were last looked at; their names, `key` or `key[shard]`.

    Raises:
        GateauError, TransientError: an input is not there, or cannot be reached.
    """
    changed = []
    for given in inputs_of(state.config):
        known = _known_versions(instance, given, state)
        for partition, found in input_versions(state, given).items():
            if known.get(partition) != found.version:
                instance.report_runless_asset_event(_observation(given.key, partition, found))
                changed.append(given.key if partition is None else f"{given.key}[{partition}]")
    return changed


def _known_versions(instance: DagsterInstance, given: Input, state: State) -> Mapping[str | None, str]:
    """Of the latest observations, by partition."""
    key = asset_key(given.key)
    if given.partitions:
        shards: list[str] = list(state.shards)
        tags = instance.event_log_storage.get_latest_tags_by_partition(
            key, DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION_TAG], asset_partitions=shards
        )
        return {shard: found[DATA_VERSION_TAG] for shard, found in tags.items()}
    records = instance.fetch_observations(AssetRecordsFilter(asset_key=key), limit=1).records
    event = records[0].asset_observation if records else None
    return {} if event is None else {None: (event.tags or {}).get(DATA_VERSION_TAG, "")}


def _observation(key: str, partition: str | None, found: InputVersion) -> dg.AssetObservation:
    metadata: dict[str, Any] = {
        name: dg.MetadataValue.timestamp(value) if isinstance(value, datetime) else value
        for name, value in found.facts.items()
    }
    if found.rows is not None:
        metadata["dagster/partition_row_count"] = found.rows
    return dg.AssetObservation(
        asset_key(key), partition=partition, metadata=metadata, tags={DATA_VERSION_TAG: found.version}
    )
