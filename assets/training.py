"""Assets `training_mix` and `checkpoint`: the selected samples and the short conversations, and the model they make."""

from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.metadata import figures_metadata
from assets.model_training import Wanted, trained_model_asset
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.pipeline.made_models import made_upstream
from gateau_dagster.pipeline.state import CHECKPOINT_FOLDER, State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import frame_digest
from resources.configuration import ConfigurationResource


def training_mix_asset(config: Config) -> dg.AssetsDefinition:
    """Tokenised, in training order."""

    @global_asset(
        "training_mix",
        columns=tables.TRAINING_MIX,
        deps=["selected_subset", *(["short_chat_mix"] if config.short_chat else [])],
        kinds={"parquet", "huggingface"},
        description="Selected long samples and short conversations, tokenised, shuffled, with labels on the responses "
        "only.",
    )
    def training_mix(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        return materialise(context, configuration, "training_mix", _mix)

    return training_mix


def checkpoint_asset(config: Config) -> dg.AssetsDefinition:
    """Supervised fine-tuning (Eq. 7)."""
    return trained_model_asset(
        "checkpoint",
        deps=["training_mix", *made_upstream(config, config.training.model)],
        description="The fine-tuned model (Eq. 7), a Hugging Face folder with safetensors. Trained by a process of its "
        "own; a training that was killed goes on from its last complete checkpoint.",
        wanted=lambda found: Wanted(
            folder=CHECKPOINT_FOLDER, mix="training_mix", model=found.training.model, training=found.training
        ),
    )


def _mix(state: State, stamp: Stamp, progress: Progress) -> Made:
    from gateau_dagster.demo.inputs import ensure_demo_pair
    from gateau_dagster.models.loading import load_tokenizer
    from gateau_dagster.training.training_mix import build_training_mix

    config = state.config
    ensure_demo_pair(config, progress)
    tokenizer = load_tokenizer(config.located_model(config.origin(config.training.model)), folder=config.folder)
    mix, rejected = build_training_mix(
        state.store.read("selected_subset"),
        state.store.read("short_chat_mix") if config.short_chat else None,
        tokenizer,
        training=config.training,
        template=config.scoring.template,
        progress=progress,
    )
    # What is trained on: a source that goes by another name must not train again.
    stamp = replace(stamp, content=frame_digest(mix.drop("source")))
    stamp, metadata = write_global(state, "training_mix", stamp, mix, rejected)
    return stamp, metadata | mix_statistics(mix)


def mix_statistics(mix: pl.DataFrame) -> dict[str, Any]:
    """How much there is to learn from, by origin and source, and how long it is. `mix`: tables.TRAINING_MIX."""
    from gateau_dagster.report.plots.training_plots import mix_contents
    from gateau_dagster.training.training_mix import by_source, mix_sequences, mix_summary

    sequences = mix_sequences(mix)
    sources = [dg.TableRecord(row) for row in by_source(sequences).iter_rows(named=True)]
    return {
        **mix_summary(sequences),
        "by source": dg.MetadataValue.table(sources),
        **figures_metadata({"contents": mix_contents(sequences)}),
    }
