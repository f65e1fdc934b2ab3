"""Assets `evaluation/<benchmark>`: the checkpoint beside its base model."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import figures_metadata
from assets.steps.unpartitioned_step import UnpartitionedStep, unpartitioned_step
from gateau_dagster.config import ModelConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.registry import FAMILY, compared_benchmarks
from gateau_dagster.execution.shard_work import rejected_frame, samples_of
from gateau_dagster.pipeline.declarations import CHECKPOINT_FOLDER
from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage.documents import fetched_folder
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


@makes_asset
def evaluation(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> dg.MaterializeResult:
    """What a benchmark measures of the base model and the checkpoint."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            chosen = compared_benchmarks(step.state.config)[step.asset.removeprefix(f"{FAMILY}/")]
            outcome = chosen.run(_materials(step, models))
            step.write(outcome.table, rejected_frame(outcome.rejected))
            figures = {figure.name: figure.draw() for figure in chosen.section(outcome.table).figures}
            step.metadata |= figures_metadata(figures)
    return step.result


def _materials(step: UnpartitionedStep, models: ModelsResource) -> Materials:
    """What the benchmark may read of the store, and the models that it compares."""
    return Materials(
        config=step.state.config,
        reads=step.state.asset(step.asset).reads,
        shards=partial(_shards, step.state),
        samples=partial(_samples, step.state),
        model=partial(_compared, step.state, models),
        progress=step.progress,
    )


def _shards(state: State, asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    for part in state.pipeline.partitions(asset):
        yield state.store.read(asset, part, list(columns))


def _samples(state: State, ids: Collection[str]) -> list[Sample]:
    """A shard's other texts are let go at once."""
    wanted = pl.DataFrame({"sample_id": list(ids)}, schema={"sample_id": pl.String()})
    found = [state.store.read("raw_long_sft", shard).join(wanted, on="sample_id", how="semi") for shard in state.shards]
    return list(samples_of(pl.concat(found).sort("sample_id")))


def _compared(state: State, models: ModelsResource, which: str) -> "LoadedModel":
    """`base`: the model that was trained from; `checkpoint`: the one that came out."""
    config, trained = state.config, state.config.training.model
    if which == "base":
        return models.load(config, loadable_model(state, trained), version=model_version(state, trained))
    folder = fetched_folder(state.store, CHECKPOINT_FOLDER, config.work_folder / "evaluation")
    code = any(config.models[name].trust_remote_code for name in (trained, config.origin(trained)))
    made = state.stamp(CHECKPOINT_FOLDER, None)
    return models.load(
        config, ModelConfig(path=str(folder), trust_remote_code=code), version=made.content if made else ""
    )
