"""Assets `evaluation/<benchmark>`: the checkpoint beside its base model."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.metadata import figures_metadata
from assets.methods import sharded_assets
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.evaluation.benchmark import Materials
from gateau_dagster.evaluation.registry import ChosenBenchmark, chosen_benchmarks
from gateau_dagster.execution.shard_work import rejected_frame, samples_of
from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.selection_nodes import tables_read
from gateau_dagster.pipeline.state import CHECKPOINT_FOLDER, State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.files import local_copy
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


def benchmark_asset(config: Config, chosen: ChosenBenchmark) -> dg.AssetsDefinition:
    """What a benchmark measures of the base model and the checkpoint."""
    benchmark = chosen.benchmark

    @global_asset(
        chosen.asset,
        columns=benchmark.columns,
        deps=list(chosen.reads(config, tables_read(config))),
        sharded=sharded_assets(config),
        kinds={"pytorch"},
        pool="gpu",
        description=benchmark.description,
        code_version=benchmark.code_version,
    )
    def evaluation(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, chosen.asset, partial(_make, chosen.name, models))

    return evaluation


def _make(name: str, models: ModelsResource, state: State, stamp: Stamp, progress: Progress) -> Made:
    chosen = chosen_benchmarks(state.config)[name]
    outcome = chosen.run(materials(state, models, chosen.asset, progress))
    complete, metadata = write_global(state, chosen.asset, stamp, outcome.table, rejected_frame(outcome.rejected))
    figures = {figure.name: figure.draw() for figure in chosen.section(outcome.table).figures}
    return complete, metadata | figures_metadata(figures)


def materials(state: State, models: ModelsResource, asset: str, progress: Progress) -> Materials:
    """What the benchmark behind `asset` may read of the store, and the models that it compares."""
    return Materials(
        config=state.config,
        reads=state.node(asset).upstream,
        shards=partial(_shards, state),
        samples=partial(_samples, state),
        model=partial(_compared, state, models),
        progress=progress,
    )


def _shards(state: State, asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    for part in state.shards if state.node(asset).partitioned else [None]:
        yield state.store.read(asset, part, list(columns))


def _samples(state: State, ids: Collection[str]) -> list[Sample]:
    """A shard's other texts are let go at once."""
    wanted = pl.DataFrame({"sample_id": list(ids)}, schema={"sample_id": pl.String()})
    found = [state.store.read("raw_long_sft", shard).join(wanted, on="sample_id", how="semi") for shard in state.shards]
    return list(samples_of(pl.concat(found).sort("sample_id")))


def _compared(state: State, models: ModelsResource, which: str) -> "LoadedModel":
    """`base`: the model that was trained from; `checkpoint`: the one that came out."""
    config = state.config
    base = loadable_model(state, config.training.model)
    if which == "base":
        return models.load(config, base, version=model_version(state, config.training.model))
    folder = local_copy(state.store.files, CHECKPOINT_FOLDER, config.work_folder / "evaluation")
    checkpoint = ModelConfig(path=str(folder), trust_remote_code=base.trust_remote_code)
    made = state.stamp("checkpoint", None)
    return models.load(config, checkpoint, version=made.content if made else "")
