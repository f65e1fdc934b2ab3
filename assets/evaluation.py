"""Assets `evaluation/<benchmark>`: the checkpoint beside its base model."""

from typing import TYPE_CHECKING

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import figures_metadata
from assets.steps.unpartitioned_step import UnpartitionedStep, unpartitioned_step
from gateau_dagster.config import ModelConfig
from gateau_dagster.execution.shard_work import rejected_frame, samples_of
from gateau_dagster.pipeline.declarations import CHECKPOINT_FOLDER
from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage.files import local_copy
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel

LENGTHS = "perplexity/long"
# Documents that make up the needle's haystack: enough text for the longest prompts, whatever the data's size.
_HAYSTACK_DOCUMENTS = 256


@makes_asset
def heldout(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> dg.MaterializeResult:
    """Response perplexity by context length."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            _heldout(models, step)
    return step.result


@makes_asset
def needle(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> dg.MaterializeResult:
    """Needle in a haystack."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            _needle(models, step)
    return step.result


def compared_models(state: State, models: ModelsResource) -> "dict[str, LoadedModel]":
    """The model that was trained from, and the one that came out."""
    config = state.config
    base = loadable_model(state, config.training.model)
    folder = local_copy(state.store.files, CHECKPOINT_FOLDER, config.work_folder / "evaluation")
    checkpoint = ModelConfig(path=str(folder), trust_remote_code=base.trust_remote_code)
    made = state.stamp("checkpoint", None)
    return {
        "base": models.load(config, base, version=model_version(state, config.training.model)),
        "checkpoint": models.load(config, checkpoint, version=made.content if made else ""),
    }


def _heldout(models: ModelsResource, step: UnpartitionedStep) -> None:
    from gateau_dagster.evaluation.heldout import candidates, context_lengths, heldout_ids, heldout_perplexity
    from gateau_dagster.report.plots.evaluation_plots import heldout_bars

    state, progress = step.state, step.progress
    config, store = state.config, state.store
    raw = store.read_all("raw_long_sft", state.shards, ["sample_id", "digest"])
    selected = store.read("selected_subset", None, ["sample_id", "digest"])
    compared = compared_models(state, models)
    if LENGTHS in state.asset("evaluation/heldout").reads:
        lengths = store.read_all(LENGTHS, state.shards, ["sample_id", "context_tokens"])
    else:
        some = pl.DataFrame({"sample_id": candidates(raw, selected, config.evaluation.heldout)})
        lengths = context_lengths(compared["base"].tokenizer, _rows(state, some))
    ids = heldout_ids(raw, lengths, selected, config.evaluation.heldout)
    chosen = _rows(state, pl.DataFrame({"sample_id": ids}))
    result = heldout_perplexity(
        compared["base"],
        compared["checkpoint"],
        list(samples_of(chosen.sort("sample_id"))),
        config=config.evaluation.heldout,
        scoring=config.scoring,
        max_length=config.scoring.max_length,
        progress=progress,
    )
    rejected = rejected_frame(result.rejected)
    step.write(result.table, rejected)
    step.metadata |= figures_metadata({"held-out perplexity": heldout_bars(result.table)})


def _rows(state: State, wanted: pl.DataFrame) -> pl.DataFrame:
    """tables.RAW_LONG_SFT of the `wanted` samples; a shard's other texts are let go at once."""
    frames = [
        state.store.read("raw_long_sft", shard).join(wanted, on="sample_id", how="semi") for shard in state.shards
    ]
    return pl.concat(frames)


def _haystack(state: State) -> list[str]:
    """The first documents; shards are read only until there are enough."""
    texts: list[str] = []
    for shard in state.shards:
        texts += state.store.read("raw_long_sft", shard, ["context"])["context"].to_list()
        if len(texts) >= _HAYSTACK_DOCUMENTS:
            break
    return texts[:_HAYSTACK_DOCUMENTS]


def _needle(models: ModelsResource, step: UnpartitionedStep) -> None:
    from gateau_dagster.evaluation.needle import needle_grid
    from gateau_dagster.report.plots.evaluation_plots import needle_heatmaps

    state, progress = step.state, step.progress
    config = state.config
    texts = _haystack(state)
    results = [
        needle_grid(
            loaded,
            name,
            texts,
            config=config.evaluation.needle,
            max_length=config.scoring.max_length,
            template=config.scoring.template,
            seed=config.training.seed,
            progress=progress,
        )
        for name, loaded in compared_models(state, models).items()
    ]
    table = pl.concat([result.table for result in results])
    skipped = rejected_frame([reject for result in results for reject in result.skipped])
    step.write(table, skipped)
    step.metadata |= figures_metadata({"needle in a haystack": needle_heatmaps(table)})
