"""Read Dagster's records of our outputs, and add the outputs of the store that are missing there."""

from collections.abc import Sequence

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from assets.steps.inputs import observe_inputs
from assets.steps.many_partitions import figures_only, has_many
from assets.steps.metadata import DATA_VERSION_TAG, table_metadata
from assets.steps.partitions import asset_key
from gateau_dagster.pipeline.plan import Key
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp

# Tag of the runs that `refresh` makes.
PLAN_TAG = "gateau/plan"


def recorded_versions(instance: DagsterInstance, asset: str, shards: Sequence[str]) -> dict[str | None, str]:
    """Return the data version of the latest materialisation of each shard (None: of the global asset), if any."""
    key = asset_key(asset)
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        key, DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG], asset_partitions=list(shards)
    )
    versions: dict[str | None, str] = {shard: found[DATA_VERSION_TAG] for shard, found in tags.items()}
    event = instance.get_latest_materialization_event(key)
    materialisation = event.asset_materialization if event else None
    if materialisation is not None and materialisation.partition is None:
        versions[None] = (materialisation.tags or {}).get(DATA_VERSION_TAG, "")
    return versions


def record_what_the_store_holds(instance: DagsterInstance, state: State) -> int:
    """Record outputs that are in the store and up to date, but unknown to Dagster; return their number.

    A run killed between a write and its event leaves such an output; so does another Dagster instance on the same
    store. Inputs are recorded first, since Dagster compares outputs with the known versions of their inputs.
    """
    observe_inputs(instance, state)
    recorded = state.recorded()
    plan = state.whole_plan(recorded)
    stale: set[Key] = {(work.asset, partition) for work in plan.work for partition in work.reasons}
    count = 0
    for asset in state.pipeline.assets:
        partitions = state.pipeline.partitions(asset.key)
        versions = recorded_versions(instance, asset.key, [each for each in partitions if each is not None])
        for partition in partitions:
            stamp = recorded[asset.key, partition]
            if stamp is None or (asset.key, partition) in stale or versions.get(partition) == stamp.fingerprint:
                continue
            instance.report_runless_asset_event(_materialisation(state, asset.key, partition, stamp))
            count += 1
    return count


def _materialisation(state: State, asset: str, partition: str | None, stamp: Stamp) -> dg.AssetMaterialization:
    address = state.store.address(asset, partition)
    metadata = {} if stamp.rows is None else table_metadata(address, stamp, whole=partition is None)
    return dg.AssetMaterialization(
        asset_key(asset),
        partition=partition,
        description="Found in the store, made by a run that Dagster has no record of.",
        metadata=figures_only(metadata) if has_many(state.pipeline, asset) else metadata,
        tags={DATA_VERSION_TAG: stamp.fingerprint},
    )
