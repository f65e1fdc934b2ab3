"""Assets `training_mix` and `checkpoint`: the selected samples and the short conversations, and the model they make."""

from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.global_steps import Made, materialise, write_global
from assets.metadata import figures_metadata
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.incremental.state import CHECKPOINT_FOLDER, State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import folder_content
from gateau_dagster.storage.documents import finish_publishing, folder_stamp, publish_folder, read_training_log
from gateau_dagster.storage.files import local_copy
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource
from resources.training import TrainingResource


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


def checkpoint_asset() -> dg.AssetsDefinition:
    """Supervised fine-tuning (Eq. 7) in processes of its own."""

    @global_asset(
        "checkpoint",
        deps=["training_mix"],
        kinds={"pytorch", "huggingface", "deepspeed"},
        pool="gpu",
        description="The fine-tuned model (Eq. 7), a Hugging Face folder with safetensors. Trained by a process of its "
        "own; a training that was killed goes on from its last complete checkpoint.",
    )
    def checkpoint(
        context: dg.AssetExecutionContext,
        configuration: ConfigurationResource,
        models: ModelsResource,
        training: TrainingResource,
    ) -> dg.MaterializeResult:
        def make(state: State, stamp: Stamp, progress: Progress) -> Made:
            models.release()
            return _train(context, state, stamp, training, progress)

        return materialise(context, configuration, "checkpoint", make)

    return checkpoint


def _mix(state: State, stamp: Stamp, progress: Progress) -> Made:
    from gateau_dagster.scoring.loading import load_tokenizer
    from gateau_dagster.synthetic.inputs import ensure_demo_pair
    from gateau_dagster.training.mix import build_training_mix

    config = state.config
    ensure_demo_pair(config, progress)
    tokenizer = load_tokenizer(config.located_model(config.training.model), folder=config.folder)
    mix, rejected = build_training_mix(
        state.store.read("selected_subset"),
        state.store.read("short_chat_mix") if config.short_chat else None,
        tokenizer,
        training=config.training,
        template=config.scoring.template,
        progress=progress,
    )
    stamp, metadata = write_global(state, "training_mix", stamp, mix, rejected)
    return stamp, metadata | _mix_statistics(mix)


def _mix_statistics(mix: pl.DataFrame) -> dict[str, Any]:
    tokens = mix.select(
        pl.col("input_ids").list.len().sum().alias("tokens"),
        pl.col("labels").list.eval(pl.element() != -100).list.sum().sum().alias("target_tokens"),
        pl.col("input_ids").list.len().max().alias("longest"),
        (pl.col("truncated_tokens") > 0).sum().alias("truncated_sequences"),
    ).row(0, named=True)
    origins = dict(mix.group_by("origin").len().sort("origin").iter_rows())
    return {**tokens, "sequences": origins}


def _train(
    context: dg.AssetExecutionContext, state: State, stamp: Stamp, training: TrainingResource, progress: Progress
) -> Made:
    finish_publishing(state.store, CHECKPOINT_FOLDER)
    found = folder_stamp(state.store, CHECKPOINT_FOLDER)
    if found is not None and found.fingerprint == stamp.fingerprint:
        context.log.info("an earlier run trained this checkpoint and was ended while it published it")
        return found, _training_metadata(state)
    # A store has one checkpoint, so one training can be unfinished; another store's is not touched.
    scratch = state.config.work_folder / "training" / text_digest([state.store.root])[:12]
    spec = training_spec(state, stamp, scratch)
    training.run(context, spec, scratch / "spec.json", progress)
    complete = Stamp(fingerprint=stamp.fingerprint, inputs=stamp.inputs, content=folder_content(spec.output))
    publish_folder(state.store, spec.output, CHECKPOINT_FOLDER, complete)
    return complete, _training_metadata(state)


def training_spec(state: State, stamp: Stamp, scratch: Path) -> "Any":
    """What the training process is told; its unfinished work is kept below `scratch`, by what is being trained."""
    from gateau_dagster.training.deepspeed_config import deepspeed_config
    from gateau_dagster.training.spec import TrainingSpec

    config = state.config
    model = config.located_model(config.training.model)
    local = config.folder / Path(model.path).expanduser()
    return TrainingSpec(
        mix=local_copy(state.store.files, "training_mix.parquet", scratch),
        base_model=str(local.absolute()) if local.is_dir() else model.path,
        revision=model.revision,
        rope_theta=model.rope_theta,
        trust_remote_code=model.trust_remote_code,
        output=scratch / "output",
        work=scratch / "work",
        training=config.training,
        deepspeed=deepspeed_config(config.training.deepspeed, folder=config.folder),
        fingerprint=stamp.fingerprint,
        template=config.scoring.template,
    )


def _training_metadata(state: State) -> dict[str, Any]:
    from gateau_dagster.report.plots.training import training_curve

    log = read_training_log(state.store)
    metadata: dict[str, Any] = {"dagster/uri": state.store.files.address(CHECKPOINT_FOLDER), "steps": len(log)}
    if log:
        metadata |= {"final_loss": log[-1]["loss"], "tokens": log[-1]["tokens"]}
        metadata |= figures_metadata({"training curve": training_curve(log)})
    return metadata
