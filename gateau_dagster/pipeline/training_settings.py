"""Which settings of training decide the model that comes out, and which parts of the configuration the report shows."""

from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.evaluation.registry import with_benchmarks
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.pipeline.asset import Observed
from gateau_dagster.pipeline.sample_table_asset import OPERATIONAL_SCORING
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config

# How training runs, not what comes out.
_OPERATIONAL_TRAINING = {
    *("enabled", "save_steps", "gradient_checkpointing", "launcher", "hostfile", "report_to"),
    *("preset", "sequences_per_step", "tokens_per_step"),  # what they come to stands in other fields
}
# They decide what is in the mix, whose content the checkpoint is made from.
_OF_THE_MIX = {"mix", "truncation", "longce_gamma"}


def mix_settings(config: Config, observed: Observed) -> dict[str, Any]:
    """Of the training mix."""
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
    """Of the checkpoint.

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
        # What a preset or a file comes to counts, not what it is called.
        "training.deepspeed": agreed_deepspeed_config(training, folder=config.folder),
    }


def shown_configuration(config: Config) -> str:
    """Digest of the configuration that the report prints: what only says how the pipeline runs is left out."""
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
