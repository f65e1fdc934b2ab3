"""Declare what the single run trains: the mix, its settings, and the resulting model."""

from collections.abc import Iterator
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.evaluation.registry import with_benchmarks
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.pipeline.asset import REJECTED_SHARE, TRUNCATED_SHARE, Asset, Observed
from gateau_dagster.pipeline.document_split_asset import mix_checks
from gateau_dagster.pipeline.inputs import origin_key
from gateau_dagster.pipeline.made_models import made_upstream
from gateau_dagster.pipeline.sample_table_asset import OPERATIONAL_SCORING
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.storage.stamp import By, fingerprint
from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config
from gateau_dagster.training.longce import LONG, SHORT
from gateau_dagster.training.spec import CODE_VERSION as TRAINING_CODE_VERSION
from gateau_dagster.training.training_mix import CODE_VERSION as MIX_CODE_VERSION

# They decide how training runs, not its result.
_OPERATIONAL_TRAINING = {
    *("enabled", "save_steps", "gradient_checkpointing", "launcher", "hostfile", "report_to"),
    *("preset", "sequences_per_step", "tokens_per_step"),  # their results are in other fields
}
# They decide the content of the mix, from which the checkpoint is made.
_OF_THE_MIX = {"mix", "truncation", "longce_gamma"}


def mix_settings(config: Config, observed: Observed) -> dict[str, Any]:
    """Return the settings of the training mix."""
    training = config.training
    weighs = {"training.longce_gamma": training.longce_gamma} if training.loss == "longce" else {}
    return {
        f"models.{training.model} weights": observed.model_digests[training.model],
        "scoring.template": config.scoring.template,
        **rendering_settings(config.scoring.template, observed.frame(config.origin(training.model))),
        "training.max_length": training.max_length,
        "training.truncation": training.truncation,
        "training.seed": training.seed,
        **weighs,
        **{f"training.mix.{name}": value for name, value in training.mix.model_dump(mode="json").items()},
    }


def training_settings(config: Config, observed: Observed) -> dict[str, Any]:
    """Return the settings of the checkpoint.

    Raises:
        GateauError: the file that training.deepspeed names cannot be read, or contradicts `training`.
    """
    training = config.training
    section = f"models.{training.model}"
    left_out = _OPERATIONAL_TRAINING | _OF_THE_MIX | ({"epochs"} if training.max_steps is not None else set())
    options = {f"training.{name}": value for name, value in training.model_dump(mode="json", exclude=left_out).items()}
    return {
        f"{section} weights": observed.model_digests[training.model],
        f"{section}.rope_theta": config.models[training.model].rope_theta,
        **options,
        "training.gradient_accumulation": training.passes_per_step,
        # The content of a preset or file counts, not its name.
        "training.deepspeed": agreed_deepspeed_config(training, folder=config.folder),
    }


def shown_configuration(config: Config) -> str:
    """Return a digest of the configuration that the report prints, without settings of how the pipeline runs."""
    shown = with_benchmarks(config).model_dump(
        mode="json",
        exclude={
            "storage": True,
            "long_sft": {"max_rejected", "verify"},
            "short_chat": {"verify"},
            "models": {"__all__": {"verify"}},
            "evaluation": {
                "engine": {"base_url", "key", "concurrency", "retries", "timeout", "token_limit"},
                "judge": {"concurrency", "retries", "timeout", "token_limit"},
            },
            "execution": True,
            "demo": True,
            "scoring": OPERATIONAL_SCORING,
            "training": _OPERATIONAL_TRAINING - {"enabled"},
            **({"variants": True} if config.variants is None else {}),
        },
    )
    return fingerprint(shown)


def mix_reads(config: Config, chosen: str) -> dict[str, By]:
    """Return the assets that the mix reads, and how each counts. `chosen`: the asset with the selected samples."""
    mix = config.training.mix
    # An equal selection gives an equal mix, unless the mix depends on the samples' ranks or sources.
    by: By = "fingerprint" if mix.long_fraction < 1 or mix.weights else "content"
    chat: dict[str, By] = {"short_chat_mix": "content"} if config.short_chat else {}
    pair: dict[str, By] = dict.fromkeys((SHORT, LONG), "fingerprint") if weighs_responses(config) else {}
    return {chosen: by, **chat, **pair}


def weighs_responses(config: Config) -> bool:
    """Return whether there are long samples whose tokens are weighed."""
    return config.training.loss == "longce" and not config.training.mix.without_long


def mix_columns(config: Config) -> tuple[tables.Column, ...]:
    """Return the columns of the mix."""
    return tables.WEIGHTED_MIX if config.training.loss == "longce" else tables.TRAINING_MIX


CHECKPOINT_FOLDER = "checkpoint"


def training_mix(config: Config) -> Iterator[Asset]:
    """Declare what the checkpoint is trained on."""
    training = config.training
    if not training.enabled:
        return
    yield Asset(
        key="training_mix",
        maker="training_mix",
        group="training",
        kinds=("parquet", "huggingface"),
        summary="selected + short, tokenised, in training order",
        description="Selected long samples and short conversations, tokenised, shuffled, with labels on the responses "
        "only.",
        inputs=(origin_key(config, training.model),),
        reads=mix_reads(config, CHOSEN),
        observe=lambda observed: mix_settings(config, observed),
        code_version=MIX_CODE_VERSION,
        columns=mix_columns(config),
        checks=(REJECTED_SHARE, TRUNCATED_SHARE, *mix_checks(config)),
        goal=True,
    )


def checkpoint(config: Config) -> Iterator[Asset]:
    """Declare the fine-tuned model (Eq. 7)."""
    if not config.training.enabled:
        return
    yield Asset(
        key=CHECKPOINT_FOLDER,
        maker="trained_model",
        group="training",
        kinds=("pytorch", "huggingface", "deepspeed"),
        summary="the fine-tuned model, a Hugging Face folder",
        description="The fine-tuned model (Eq. 7), a Hugging Face folder with safetensors. Trained by a process of its "
        "own; a training that was killed goes on from its last complete checkpoint.",
        inputs=(origin_key(config, config.training.model),),
        reads={"training_mix": "content", **made_upstream(config, config.training.model)},
        observe=lambda observed: training_settings(config, observed),
        code_version=TRAINING_CODE_VERSION,
        folder=True,
        goal=True,
        own_rejects=False,
        pool="gpu",
    )
