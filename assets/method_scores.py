"""Make the assets `method_scores/<method>`: a method's score of every sample; no model is loaded."""

from collections.abc import Iterator, Mapping

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import first_histogram
from assets.steps.partitioned_step import Event, Finished, shard_events, stale_partitions
from assets.steps.step import asset_step
from assets.steps.unpartitioned_step import unpartitioned_step
from gateau_dagster.execution.shard_tables import ShardResult
from gateau_dagster.methods.method import FAMILY, Method
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.selection.combine import with_reasons
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource

RAW = "raw_long_sft"


@makes_asset
def method_scores(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
    """Score all samples with a method that needs the data set as a whole."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            table, rejected = _scores(step.state, _chosen(step.state, step.asset), None)
            step.write(table, rejected)
            step.metadata |= {"without_score": table["score"].null_count(), **first_histogram(table)}
    return step.result


@makes_asset
def method_scores_by_shard(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> Iterator[Event]:
    """Score the samples shard by shard, with a method whose score of a sample depends on its own rows only."""
    with asset_step(context, configuration) as progress:
        state, asset = configuration.state(), context.asset_key.to_user_string()
        stale = stale_partitions(context, state, asset)
        yield from shard_events(context, state, {asset: stale}, _scored(state, asset, stale, progress))


def _chosen(state: State, asset: str) -> Method:
    return chosen_methods(state.config)[asset.removeprefix(f"{FAMILY}/")]


def _scored(state: State, asset: str, stale: Mapping[str, Stamp], progress: Progress) -> Iterator[Finished]:
    for done, (shard, stamp) in enumerate(stale.items(), start=1):
        table, rejected = _scores(state, _chosen(state, asset), shard)
        complete = state.store.write(table, asset, shard, stamp, rejected)
        progress(done, len(stale), "shards")
        result = ShardResult(table=table, rejected=rejected, computed=table.height, reused=0, stamp=complete)
        yield asset, shard, result, {"without_score": table["score"].null_count()}


def _scores(state: State, method: Method, shard: str | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the scores of one shard or of all, and the samples without a score, with the reasons."""
    wanted = method.reads()
    found = {asset: state.read(asset, list(columns), shard) for asset, columns in wanted.items()}
    scores = method.scores(found)
    absent = state.read(RAW, ["sample_id"], shard).join(scores, on="sample_id", how="anti")
    reasons = [state.read_rejected(asset, shard) for asset in wanted if asset != RAW]
    return scores, with_reasons(absent, reasons).with_columns(
        pl.col("reason").fill_null(f"not in all of {', '.join(wanted)}")
    )
