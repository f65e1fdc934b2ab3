"""Assets of the selection methods: the tables that models compute for them, and `method_scores/<method>`."""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
import polars as pl

from assets.definition import global_asset, partitioned_asset
from assets.partitioned_step import Event, Finished, shard_events, stale_shards
from assets.scoring_step import scored_shards
from assets.step import asset_step
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.execution.shard_work import ShardResult
from gateau_dagster.methods.registry import ChosenMethod, chosen_methods, sample_tables
from gateau_dagster.pipeline.made_models import made_upstream
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.selection.combine import with_reasons
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

RAW = "raw_long_sft"


def sample_table_asset(config: Config, table: SampleTable) -> dg.AssetsDefinition:
    """A table that a model computes for a method, shard by shard."""

    @partitioned_asset(
        config,
        table.asset,
        columns=table.columns,
        deps=[RAW, *made_upstream(config, table.model)],
        kinds={"pytorch", "huggingface"},
        pool="gpu",
        description=f"{table.description} Computed with `{table.model}`: {config.models[table.model].path}.",
        code_version=table.code_version,
    )
    def sample_table(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> Iterator[Event]:
        yield from scored_shards(context, configuration, models, table.model)

    return sample_table


def method_scores_asset(config: Config, chosen: ChosenMethod) -> dg.AssetsDefinition:
    """A method's score of every sample; loads no model."""
    return _by_shard(config, chosen) if chosen.method.per_sample else _over_all(config, chosen)


def _by_shard(config: Config, chosen: ChosenMethod) -> dg.AssetsDefinition:
    @partitioned_asset(
        config,
        chosen.asset,
        columns=tables.METHOD_SCORES,
        deps=[RAW, *_read(config, chosen)],
        kinds={"polars"},
        description=_description(chosen),
        code_version=chosen.method.code_version,
    )
    def method_scores(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[Event]:
        with asset_step(context, configuration) as progress:
            state = configuration.state()
            stale = stale_shards(context, state, chosen.asset)
            yield from shard_events(context, state, {chosen.asset: stale}, _scored(state, chosen, stale, progress))

    return method_scores


def _over_all(config: Config, chosen: ChosenMethod) -> dg.AssetsDefinition:
    @global_asset(
        chosen.asset,
        columns=tables.METHOD_SCORES,
        deps=[RAW, *_read(config, chosen)],
        kinds={"polars"},
        description=f"{_description(chosen)} Over the whole data set: waits for all shards.",
        sharded=sharded_assets(config),
        code_version=chosen.method.code_version,
    )
    def method_scores(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        def make(state: State, stamp: Stamp, progress: Progress) -> Made:
            del progress
            table, rejected = _scores(state, chosen, None)
            return write_global(state, chosen.asset, stamp, table, rejected)

        return materialise(context, configuration, chosen.asset, make)

    return method_scores


def sharded_assets(config: Config) -> frozenset[str]:
    """The assets that methods bring along, and that have a partition a shard."""
    scores = {each.asset for each in chosen_methods(config).values() if each.method.per_sample}
    return frozenset(scores | {*sample_tables(config)})


def _scored(state: State, chosen: ChosenMethod, stale: Mapping[str, Stamp], progress: Progress) -> Iterator[Finished]:
    for done, (shard, stamp) in enumerate(stale.items(), start=1):
        table, rejected = _scores(state, chosen, shard)
        complete = state.store.write(table, chosen.asset, shard, stamp, rejected)
        progress(done, len(stale), "shards")
        result = ShardResult(table=table, rejected=rejected, computed=table.height, reused=0, stamp=complete)
        yield chosen.asset, shard, result, {"without_score": table["score"].null_count()}


def _scores(state: State, chosen: ChosenMethod, shard: str | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The scores of one shard or of all, and the samples without a row, with the reasons."""
    wanted = chosen.reads(state.config)
    found = {asset: _table(state, asset, columns, shard) for asset, columns in wanted.items()}
    scores = chosen.score(found, state.config)
    absent = _table(state, RAW, ["sample_id"], shard).join(scores, on="sample_id", how="anti")
    partitions: Sequence[str | None] = state.shards if shard is None else [shard]
    reasons = [
        state.store.read_rejected(asset, partitions if state.node(asset).partitioned else [None])
        for asset in wanted
        if asset != RAW
    ]
    return scores, with_reasons(absent, reasons).with_columns(
        pl.col("reason").fill_null(f"not in all of {', '.join(wanted)}")
    )


def _table(state: State, asset: str, columns: Sequence[str], shard: str | None) -> pl.DataFrame:
    if not state.node(asset).partitioned:
        return state.store.read(asset, None, list(columns))
    return state.store.read_all(asset, state.shards if shard is None else [shard], list(columns))


def _read(config: Config, chosen: ChosenMethod) -> list[str]:
    return [asset for asset in chosen.reads(config) if asset != RAW]


def _description(chosen: ChosenMethod) -> str:
    return f"Scores of the method `{chosen.name}` ({chosen.method.source}). High: {chosen.method.title}"
