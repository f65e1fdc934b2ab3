"""Read Dagster's records of our outputs, and build the tags of new ones."""

from collections.abc import Mapping

from dagster import AssetRecordsFilter, DagsterEventType, DagsterInstance

from gateau_dagster.assets.steps.metadata import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_EVENT_TAGS,
    INPUT_VERSION_TAGS,
)
from gateau_dagster.assets.steps.partitions import asset_key, has_many
from gateau_dagster.pipeline.plan import Key
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.upstream_versions import upstream_versions
from gateau_dagster.storage import Stamp

# Tag of the runs that `refresh` makes.
PLAN_TAG = "gateau/plan"


def version_tags(
    state: State, asset: str, partition: str | None, stamp: Stamp, stamps: Mapping[Key, Stamp | None] | None = None
) -> dict[str, str]:
    """Return the tags of an output's record: its data version, and the versions of what it was made from.

    By these Dagster shows an output as stale. It writes them only for outputs that it records itself. Of a table with
    very many partitions only the data version is recorded: Dagster compares at most 100 upstream partitions.

    Args:
        state: of the project.
        asset, partition: the output, which is up to date.
        stamp: of the output.
        stamps: of all outputs, if the caller has read them.
    """
    tags = {DATA_VERSION_TAG: state.asset(asset).data_version(stamp)}
    if has_many(state.pipeline, asset):
        return tags
    tags[CODE_VERSION_TAG] = state.pipeline.code_versions[asset]
    for name, version in upstream_versions(state, asset, partition, stamp, stamps).items():
        tags[INPUT_VERSION_TAGS + asset_key(state.config, name).to_user_string()] = version
    return tags


def with_events(instance: DagsterInstance, tags: Mapping[str, str]) -> dict[str, str]:
    """Return `version_tags` for a record written now: with the place in the log up to which inputs are recorded."""
    seen = str(instance.event_log_storage.get_maximum_record_id() or "NULL")
    inputs = (name.removeprefix(INPUT_VERSION_TAGS) for name in tags if name.startswith(INPUT_VERSION_TAGS))
    return {**tags, **{INPUT_EVENT_TAGS + name: seen for name in inputs}}


def recorded_tags(instance: DagsterInstance, state: State, asset: str) -> dict[str | None, Mapping[str, str]]:
    """Return `version_tags` of the latest record of each partition (None: of an asset without any), if it has one."""
    key, kind = asset_key(state.config, asset), DagsterEventType.ASSET_MATERIALIZATION
    parts = {part for part in state.pipeline.partitions(asset) if part is not None}
    log = instance.event_log_storage
    if has_many(state.pipeline, asset):
        return {**log.get_latest_tags_by_partition(key, kind, [DATA_VERSION_TAG], asset_partitions=[*parts])}
    ids = [*log.get_latest_storage_id_by_partition(key, kind, parts).values()] if parts else None
    if ids == []:
        return {}
    wanted = AssetRecordsFilter(asset_key=key, storage_ids=ids)
    records = instance.fetch_materializations(wanted, limit=len(parts) or 1).records
    made = [record.asset_materialization for record in records]
    return {each.partition: _versions(each.tags or {}) for each in made if each is not None}


def _versions(tags: Mapping[str, str]) -> dict[str, str]:
    # Without the pointers to events: what an output was made from may have been recorded again since.
    own = {DATA_VERSION_TAG, CODE_VERSION_TAG}
    return {name: tag for name, tag in tags.items() if name in own or name.startswith(INPUT_VERSION_TAGS)}
