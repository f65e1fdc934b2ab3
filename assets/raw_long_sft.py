"""Make the asset `raw_long_sft`: the validated long samples."""

from collections.abc import Iterator

import dagster as dg

from assets.steps.definition import makes_asset
from assets.steps.metadata import fields_metadata, source_chart
from assets.steps.partitioned_step import Event, Finished, shard_events, stale_partitions
from assets.steps.step import asset_step
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.data.rejects import check_rejected
from gateau_dagster.execution.shard_tables import ShardResult
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


@makes_asset
def raw_long_sft(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[Event]:
    """Read all changed shards in one pass over the input."""
    with asset_step(context, configuration) as progress:
        state = State(config=configuration.config, progress=progress)
        # `gateau run` has checked this already, but a Materialise in the UI makes no plan.
        check_rejected(state.index.rejects, state.config.long_sft)
        stale = stale_partitions(context, state, "raw_long_sft")
        yield from shard_events(context, state, {"raw_long_sft": stale}, _read(state, stale))


def _read(state: State, stale: dict[str, Stamp]) -> Iterator[Finished]:
    """Write each stale shard as soon as the last of its samples is read."""
    if not stale:
        return
    config, shards = state.config, {int(shard): shard for shard in stale}
    fields = fields_metadata(state.index.fields)
    frames = read_shards(config.located_long_sft, config.folder, state.index, list(shards), state.progress)
    for number, table, rejected in frames:
        shard = shards[number]
        stamp = state.store.write(table, "raw_long_sft", shard, stale[shard], rejected)
        result = ShardResult(table=table, rejected=rejected, computed=table.height, reused=0, stamp=stamp)
        metadata = {"sources": source_chart(table["source"], "samples"), "input_fields": fields}
        yield "raw_long_sft", shard, result, metadata
