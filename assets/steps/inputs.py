"""Define the inputs as observable source assets, and record the version of each."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import dagster as dg
from dagster import AssetRecordsFilter, DagsterEventType, DagsterInstance

from assets.steps.failures import readable_failure
from assets.steps.metadata import DATA_VERSION_TAG
from assets.steps.partitions import asset_key, partition_definitions
from gateau_dagster.config import Config
from gateau_dagster.pipeline.input_versions import InputVersion, input_versions
from gateau_dagster.pipeline.inputs import Input, inputs_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from resources.configuration import ConfigurationResource


def input_definitions(config: Config) -> list[dg.AssetsDefinition]:
    """Define an observable source asset per input of raw_long_sft, models and mixes."""
    return [_definition(config, each) for each in inputs_of(config)]


def _definition(config: Config, given: Input) -> dg.AssetsDefinition:
    spec = dg.AssetSpec(
        asset_key(given.key),
        description=f"`{given.key}`: {given.summary} ({given.path}). The sensor `inputs` looks at it, and every run.",
        group_name=given.key.split("/", maxsplit=1)[0],
        kinds=set(given.kinds),
        owners=config.execution.catalogue.owners_of(given.key),
        tags=dict(config.execution.catalogue.tags),
        metadata={"path": given.path},
        partitions_def=partition_definitions(config)[given.partitions] if given.partitions else None,
    )

    @dg.multi_observable_source_asset(name=f"look_at_{given.key.replace('/', '_')}", specs=[spec], can_subset=True)
    def look(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> Iterator[dg.AssetObservation | dg.Output[None]]:
        with readable_failure(context):
            state = configuration.state()
            found = [*_changes(context.instance, state, given)]
        context.log.info(f"{given.key}: {plural(len(found), 'new version')}")
        yield from found

    return look


def observe_inputs(instance: DagsterInstance, state: State) -> int:
    """Record the inputs that changed since the last observation; return the number of records.

    Raises:
        GateauError, TransientError: an input is missing or cannot be reached.
    """
    found = [change for given in inputs_of(state.config) for change in _changes(instance, state, given)]
    for change in found:
        instance.report_runless_asset_event(change)
    return len(found)


def _changes(instance: DagsterInstance, state: State, given: Input) -> Iterator[dg.AssetObservation]:
    known = _known_versions(instance, given, state)
    for partition, found in input_versions(state, given).items():
        if known.get(partition) != found.version:
            yield _observation(given.key, partition, found)


def _known_versions(instance: DagsterInstance, given: Input, state: State) -> Mapping[str | None, str]:
    """Return the versions in the latest observations, by partition."""
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
