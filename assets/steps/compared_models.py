"""Locate and load the models that are compared, and collect what a benchmark may read beside them."""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.assets.steps.step import Step
from gateau_dagster.config import ModelConfig
from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.data.sample import Sample
from gateau_dagster.demo.prepare import ensure_demo_pair
from gateau_dagster.evaluation.benchmark import Materials, Question, QuestionBenchmark
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.pipeline.loadable import Placed, downloads, fetched_model, loadable_model, placed_model
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, IN_STORE
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.resources.models import ModelsResource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loading import LoadedModel


def materials(state: State, asset: str, models: ModelsResource, progress: Progress) -> Materials:
    """Return what a benchmark may read of the store for this asset, and the models that it compares."""
    return Materials(
        config=state.config,
        reads=state.asset(asset).reads,
        shards=partial(_shards, state),
        samples=partial(_samples, state),
        model=partial(compared_model, state, models),
        progress=progress,
        only_tokenizer=partial(_tokenizer, state),
    )


def _tokenizer(state: State, name: str) -> "PreTrainedTokenizerBase":
    from gateau_dagster.models.loading import load_tokenizer

    section, _ = located_variant(state, name)
    return load_tokenizer(section, folder=state.config.folder)


def _shards(state: State, asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    for part in state.pipeline.partitions(asset):
        yield state.store.read(asset, part, list(columns))


def _samples(state: State, ids: Collection[str]) -> list[Sample]:
    """Return the samples, reading one shard at a time so that other texts do not stay in memory."""
    wanted = pl.DataFrame({"sample_id": list(ids)}, schema={"sample_id": pl.String()})
    found = [state.store.read_rows("raw_long_sft", shard, wanted) for shard in state.shards]
    # `conversation` is only in shards that have conversations.
    return list(samples_of(pl.concat(found, how="diagonal").sort("sample_id")))


def asked_questions(step: Step, models: ModelsResource) -> Sequence[Question]:
    """Return the questions of the step's benchmark, which are the same for every variant.

    Raises:
        GateauError: the questions cannot be read.
    """
    (asset,) = step.assets
    chosen = scored_benchmarks(step.state.config)[asset.split("/", maxsplit=1)[1]]
    assert isinstance(chosen, QuestionBenchmark), "another benchmark has no such asset"
    return chosen.questions(materials(step.state, asset, models, step.progress))


def compared_model(state: State, models: ModelsResource, name: str) -> "LoadedModel":
    """Load a variant's model. base: the model that training starts from; checkpoint: the result of the single run.

    Raises:
        GateauError, TransientError: it cannot be fetched or loaded, or its files are damaged.
    """
    section, version = located_variant(state, name)
    return models.load(state.config, section, version=version)


def located_variant(state: State, name: str) -> tuple[ModelConfig, str]:
    """Return where a variant's model can be loaded from, and its version; raise the errors of `compared_model`."""
    placed = placed_variant(state, name)
    if name == BASE:
        return loadable_model(state, state.config.training.model), placed.version
    return fetched_model(state.store, placed, downloads(state)), placed.version


def placed_variant(state: State, name: str) -> Placed:
    """Return a variant's model in a form that is valid on every machine."""
    config, trained = state.config, state.config.training.model
    if name == BASE:
        ensure_demo_pair(config, state.progress)
        return placed_model(state, trained)
    if name == CHECKPOINT:
        made = state.stamp(CHECKPOINT_FOLDER, None)
        return _in_store(state, CHECKPOINT_FOLDER, made.content if made else "")
    row = state.store.read(CHECKPOINTS, name).row(0, named=True)
    stamp = state.stamp(CHECKPOINTS, name)
    assert stamp is not None
    if row["model"].startswith(IN_STORE):
        return _in_store(state, row["model"].removeprefix(IN_STORE), stamp.content)
    other = config.variant_set[name].other
    assert other is not None
    return Placed(section=other.model, version=stamp.content, place=f"variants.also.{name}")


def _in_store(state: State, folder: str, version: str) -> Placed:
    """Return the place of a model that was trained here."""
    code = state.config.models[state.config.origin(state.config.training.model)].trust_remote_code
    code = code or state.config.models[state.config.training.model].trust_remote_code
    return Placed(section=ModelConfig(path=folder, trust_remote_code=code), version=version, stored=folder)
