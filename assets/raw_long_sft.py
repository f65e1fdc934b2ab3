"""Asset `raw_long_sft`: the validated long samples."""

from collections.abc import Iterator

import dagster as dg

from assets.definition import partitioned_asset
from assets.partitioned_step import Event, Finished, shard_events, stale_shards
from assets.step import asset_step
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.execution.shard_work import ShardResult
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


def raw_long_sft_asset(config: Config) -> dg.AssetsDefinition:
    """Reads all changed shards in one pass over the input."""

    @partitioned_asset(
        config,
        "raw_long_sft",
        columns=tables.RAW_LONG_SFT,
        kinds={"parquet", "polars"},
        description="Long instruction samples (c, x; y), validated. What cannot be used is in the rejected table, "
        "with the reason. A sample's shard is a hash of its id, so one edit touches one shard.",
    )
    def raw_long_sft(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[Event]:
        with asset_step(context, configuration) as progress:
            state = State(config=configuration.config, progress=progress)
            stale = stale_shards(context, state, "raw_long_sft")
            yield from shard_events(context, state, {"raw_long_sft": stale}, _read(state, stale))

    return raw_long_sft


def _read(state: State, stale: dict[str, Stamp]) -> Iterator[Finished]:
    """Writes each stale shard as soon as the last of its samples is read."""
    if not stale:
        return
    config, shards = state.config, {int(shard): shard for shard in stale}
    frames = read_shards(config.located_long_sft, config.folder, state.index, list(shards), state.progress)
    for number, table, rejected in frames:
        shard = shards[number]
        stamp = state.store.write(table, "raw_long_sft", shard, stale[shard], rejected)
        result = ShardResult(table=table, rejected=rejected, computed=table.height, reused=0, stamp=stamp)
        yield "raw_long_sft", shard, result, {}
