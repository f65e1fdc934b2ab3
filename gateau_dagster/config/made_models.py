"""Check the models that the pipeline makes: their sections, and how they are trained."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gateau_dagster.config.base import NOTHING, code_of, effect_of
from gateau_dagster.config.models import (
    HOMOLOGOUS,
    PRE_EXPERIENCED,
    HomologousOptions,
    ModelConfig,
    PreExperienceOptions,
)
from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.config.values import MOST_ROWS
from gateau_dagster.errors import GateauError

# The part of `training` that adapts training to this machine, as opposed to what is learned from which samples. The
# first keys change the result. `report_data` is about the data of the single run.
_CHANGING = {"max_length", "truncation", "dtype", "batch_size", "processes", "sequence_parallel", "deepspeed"}
_CHANGING |= {"chunked_loss", "liger"}
_OF_THE_MACHINE = _CHANGING | {
    name
    for name, field in TrainingConfig.model_fields.items()
    if effect_of(TrainingConfig, field) is NOTHING and name != "report_data"
}


def check_made_models(models: Mapping[str, ModelConfig], training: TrainingConfig, *, segment_length: int) -> None:
    """Check the sections of the models to be made, before any model runs.

    Raises:
        ValueError: a section names no existing causal model, or has a setting that only an existing model has.
    """
    for name, model in models.items():
        place = f"models.{name}"
        _check_sections(place, model)
        if model.base is None:
            continue
        _check_role(name, model, training)
        _check_base(models, name, model)
        if model.task != "causal":
            raise GateauError(
                "models.made_settings", f"{place}.task: is {model.task}, but a made model must be causal: remove task"
            )
        if model.revision is not None:
            raise GateauError(
                "models.made_settings",
                f"{place}.revision: a made model has no revision: set it for models.{model.base}",
            )
        if model.is_homologous:
            _check_homologous(place, model, training, segment_length)
        else:
            _check_batch(place, model, training)


def _check_sections(place: str, model: ModelConfig) -> None:
    """Check that sections about making a model are on models that are made that way."""
    if model.pre_experience is not None and (model.base is None or model.is_homologous):
        raise GateauError(
            "models.made_settings",
            f"{place}.pre_experience: applies only to models with path {PRE_EXPERIENCED}<model>: remove it, or "
            "change the path",
        )
    if model.homologous is not None and not model.is_homologous:
        raise GateauError(
            "models.made_settings",
            f"{place}.homologous: applies only to models with path {HOMOLOGOUS}<model>: remove it, or change the path",
        )


def _check_role(name: str, model: ModelConfig, training: TrainingConfig) -> None:
    """Check the role: a pre-experienced model is for scoring; a homologous one is theta_B, and may be trained on."""
    if model.is_homologous:
        if name == "short":
            raise GateauError(
                "models.made_role",
                "models.short.path: models.short is theta_A, from which a homologous model starts: set "
                f"models.long.path to {HOMOLOGOUS}short, and models.short to an existing model",
            )
        return
    if name in {"short", "long"}:
        raise GateauError(
            "models.made_role",
            f"models.{name}.path: models.short and models.long cannot be pre-experienced: give the made model "
            "another name",
        )
    if training.model == name:
        raise GateauError(
            "models.made_role",
            f"training.model: {name} is made for scoring only: set training.model to {model.base}, its base",
        )


def _check_base(models: Mapping[str, ModelConfig], name: str, model: ModelConfig) -> None:
    place, base = f"models.{name}.path", model.base
    assert base is not None
    if base not in models or base == name:
        others = ", ".join(other for other in models if models[other].base is None)
        raise GateauError("models.made_base", f"{place}: {model.path} must name another model of `models` ({others})")
    if models[base].base is not None:
        raise GateauError(
            "models.made_base",
            f"{place}: models.{base} is itself made by the pipeline: name the base of models.{base}",
        )
    if models[base].task != "causal":
        raise GateauError(
            "models.made_base",
            f"{place}: models.{base} has task {models[base].task}, but only a causal model can be trained: name "
            "another model",
        )


def _check_batch(place: str, model: ModelConfig, training: TrainingConfig) -> None:
    batch, each = _stage(model).batch, _sequences_at_a_time(training)
    if batch % each:
        raise GateauError(
            "training.indivisible",
            f"{place}.pre_experience.batch: {batch} is not a multiple of {each}, the sequences of one pass over all "
            "processes (training.batch_size x training.processes / training.sequence_parallel). Choose a multiple",
        )


def _sequences_at_a_time(training: TrainingConfig) -> int:
    return training.batch_size * training.data_processes


def _check_homologous(place: str, model: ModelConfig, training: TrainingConfig, segment_length: int) -> None:
    options = homologous_options(model)
    if model.rope_theta is not None:
        raise GateauError(
            "models.homologous",
            f"{place}.rope_theta: would undo the position extension of its training: remove it, and set "
            f"{place}.homologous.positions",
        )
    if options.length <= segment_length:
        raise GateauError(
            "models.homologous",
            f"{place}.homologous.length: {options.length} tokens do not exceed scoring.segment_length = "
            f"{segment_length}: raise it",
        )
    if (options.tokens or 0) // options.length > MOST_ROWS:
        raise GateauError(
            "models.homologous",
            f"{place}.homologous.tokens: {options.tokens} tokens exceed {MOST_ROWS:,} rows of {options.length} tokens "
            "(length), the most that can be planned: lower it",
        )
    try:
        assert stage_training(model, training).passes_per_step  # raises
    except GateauError as error:
        raise error.reworded(f"{place}.homologous.{error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise GateauError(code_of(first), f"{place}.homologous.{first['msg'].removeprefix('Value error, ')}") from error


def _stage(model: ModelConfig) -> PreExperienceOptions:
    assert model.pre_experience is not None
    return model.pre_experience


def homologous_options(model: ModelConfig) -> HomologousOptions:
    """Return the section of a homologous model."""
    assert model.homologous is not None
    return model.homologous


def stage_training(model: ModelConfig, training: TrainingConfig) -> TrainingConfig:
    """Return the training that makes a model: the recipe of its section, with the machine's part of `training`."""
    machine = {name: getattr(training, name) for name in _OF_THE_MACHINE}
    if model.is_homologous:
        return _homologous_training(model, machine)
    stage = _stage(model)
    return TrainingConfig(
        **machine,
        model=str(model.base),
        epochs=stage.epochs,
        learning_rate=stage.learning_rate,
        scheduler=stage.scheduler,
        warmup_ratio=stage.warmup_ratio,
        seed=stage.seed,
        gradient_accumulation=stage.batch // _sequences_at_a_time(training),
    )


def _homologous_training(model: ModelConfig, machine: Mapping[str, Any]) -> TrainingConfig:
    # One pass, in packed rows whose documents do not see one another.
    options = homologous_options(model)
    same = ("learning_rate", "scheduler", "warmup_ratio", "adam_betas", "weight_decay", "max_grad_norm", "loss", "seed")
    return TrainingConfig.model_validate(
        {
            **machine,
            **{name: getattr(options, name) for name in same},
            "model": model.base,
            "epochs": 1.0,
            "batching": "packed",
            "max_length": options.length,
            "pack_length": options.length,
            "tokens_per_step": options.tokens_per_step,
            "min_learning_rate_ratio": options.min_learning_rate_ratio if options.scheduler == "cosine" else 0.0,
            "positions": options.extension.model_dump(),
        }
    )


def place_of(name: str, model: ModelConfig, setting: str) -> str:
    """Return the place in the configuration of a setting of the training that makes a model, for messages."""
    if setting in _OF_THE_MACHINE:
        return f"training.{setting}"
    if model.is_homologous:
        section, known = "homologous", HomologousOptions.model_fields
    else:
        section, known = "pre_experience", PreExperienceOptions.model_fields
        setting = {"gradient_accumulation": "batch"}.get(setting, setting)
    return f"models.{name}.{section}.{setting}" if setting in known else f"{setting} of models.{name}"


def machine_settings(training: TrainingConfig) -> dict[str, Any]:
    """Return the machine's part of a training run that changes its result, by its place in the configuration."""
    return {f"training.{name}": value for name, value in training.model_dump(mode="json", include=_CHANGING).items()}
