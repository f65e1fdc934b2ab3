"""Assets `perplexity/<model>` and `cam`: what the homologous models say of each sample."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from assets.definition import partitioned_asset
from assets.shard_steps import Event, Finished, shard_events, stale_shards
from assets.step import asset_step
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.incremental.shard_work import Row, Score, compute_shard
from gateau_dagster.incremental.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

if TYPE_CHECKING:
    from gateau_dagster.scoring.loading import LoadedModel

RowsOf = Callable[["LoadedModel", Iterable[Sample], int], Iterator[Any]]


def perplexity_asset(config: Config, model: str) -> dg.AssetsDefinition:
    """One for every configured model."""
    role = {"short": " (theta_A)", "long": " (theta_B)"}.get(model, "")

    @partitioned_asset(
        config,
        f"perplexity/{model}",
        columns=tables.PERPLEXITY,
        deps=["raw_long_sft"],
        kinds={"pytorch", "huggingface"},
        pool="gpu",
        description=f"Perplexity of each response under `{model}`{role}: {config.models[model].path} (Eq. 1).",
    )
    def perplexity(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> Iterator[Event]:
        def rows(loaded: "LoadedModel", samples: Iterable[Sample], max_length: int) -> Iterator[Any]:
            from gateau_dagster.scoring.perplexity import perplexity_rows

            return perplexity_rows(loaded, samples, max_length=max_length, scoring=configuration.config.scoring)

        yield from _scored(context, configuration, models, f"perplexity/{model}", model, tables.PERPLEXITY, rows)

    return perplexity


def cam_asset(config: Config) -> dg.AssetsDefinition:
    """Contextual Awareness Measurement, by theta_B."""

    @partitioned_asset(
        config,
        "cam",
        columns=tables.CAM,
        deps=["raw_long_sft"],
        kinds={"pytorch", "huggingface"},
        pool="gpu",
        description="Contextual Awareness Measurement by theta_B: does the model attend to the segments that matter "
        "for the response? Segment perplexities, segment attention and their similarity CAS (Eq. 3-5).",
    )
    def cam(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> Iterator[Event]:
        def rows(loaded: "LoadedModel", samples: Iterable[Sample], max_length: int) -> Iterator[Any]:
            from gateau_dagster.scoring.cam import cam_rows

            return cam_rows(loaded, samples, max_length=max_length, scoring=configuration.config.scoring)

        yield from _scored(context, configuration, models, "cam", "long", tables.CAM, rows)

    return cam


def _scored(
    context: dg.AssetExecutionContext,
    configuration: ConfigurationResource,
    models: ModelsResource,
    asset: str,
    model: str,
    columns: tuple[tables.Column, ...],
    rows_of: RowsOf,
) -> Iterator[Event]:
    """Scores the stale shards of a table; the model is loaded when the first sample needs it, and once."""
    with asset_step(context, configuration) as progress:
        state = configuration.state()
        stale = stale_shards(context, state, asset)
        results = _shards(state, asset, stale, columns, _score(state, models, model, rows_of, progress), progress)
        yield from shard_events(context, state, asset, stale, results)


def _shards(
    state: State,
    asset: str,
    stale: dict[str, Stamp],
    columns: tuple[tables.Column, ...],
    score: Score,
    progress: Progress,
) -> Iterator[Finished]:
    """Computes the stale shards one after the other."""
    sizes = state.store.stamps(("raw_long_sft", shard) for shard in stale)
    total = sum(stamp.rows or 0 for stamp in sizes.values() if stamp is not None)
    finished = 0
    for shard, stamp in stale.items():

        def on_sample(done: int, before: int = finished, shard: str = shard) -> None:
            progress(before + done, total, "samples", f"shard {shard}")

        result = compute_shard(
            state.store,
            asset,
            shard,
            columns=columns,
            stamp=stamp,
            memory=state.node(asset).memory,
            score=score,
            on_sample=on_sample,
        )
        finished += result.table.height + result.rejected.height
        yield shard, result, _statistics(result.table, columns)


def _score(state: State, models: ModelsResource, model: str, rows_of: RowsOf, progress: Progress) -> Score:
    def score(samples: Iterable[Sample]) -> Iterator[Row | Reject]:
        from gateau_dagster.scoring.loading import effective_max_length
        from gateau_dagster.synthetic.inputs import ensure_demo_pair

        config = state.config
        ensure_demo_pair(config, progress)
        loaded = models.load(config, config.located_model(model), version=state.model_digests[model])
        max_length = effective_max_length(loaded, config.models[model], config.scoring)
        for outcome in rows_of(loaded, samples, max_length):
            yield outcome if isinstance(outcome, Reject) else asdict(outcome)

    return score


def _statistics(table: pl.DataFrame, columns: tuple[tables.Column, ...]) -> dict[str, Any]:
    """Mean, smallest and largest value of the number columns, for the trend plots of the asset page."""
    if table.is_empty():
        return {}
    numbers = [column.name for column in columns if column.dtype in (pl.Float64(), pl.Int32())]
    found: dict[str, Any] = {}
    for name in numbers:
        mean = table[name].mean()
        if isinstance(mean, float):
            found[f"mean_{name}"] = mean
    return found
