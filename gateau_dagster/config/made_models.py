"""The models that the pipeline makes itself: what may stand in their sections, and how they are trained."""

from collections.abc import Mapping
from typing import Any

from gateau_dagster.config.models import ModelConfig
from gateau_dagster.config.pre_experience import PRE_EXPERIENCED, PreExperienceOptions
from gateau_dagster.config.training import TrainingConfig

# What of `training` says how a training fits on this machine, not what is learned from which samples.
_OF_THE_MACHINE = (
    "max_length",
    "dtype",
    "batch_size",
    "processes",
    "deepspeed",
    "gradient_checkpointing",
    "save_steps",
)
_OPERATIONAL = {"gradient_checkpointing", "save_steps"}


def check_made_models(models: Mapping[str, ModelConfig], training: TrainingConfig) -> None:
    """What is wrong with the models that are to be made, known before any model runs.

    Raises:
        ValueError: one names no causal model that is there already, or is given what only such a model has.
    """
    for name, model in models.items():
        place = f"models.{name}"
        if model.base is None:
            if model.pre_experience is not None:
                raise ValueError(f"{place}.pre_experience: only a model with path {PRE_EXPERIENCED}<model> is made so")
            continue
        if name in {"short", "long"}:
            raise ValueError(
                f"{place}.path: GATEAU's pair is scored as it is: give the model that is made another name"
            )
        if training.model == name:
            raise ValueError(f"training.model: {name} is made for scoring: train {model.base}, which it begins as")
        _check_base(models, name, model.base)
        if model.task != "causal":
            raise ValueError(f"{place}.task: {model.task}, but a model that is trained on responses is causal")
        if model.revision is not None:
            raise ValueError(f"{place}.revision: it is made here: give models.{model.base} the revision")
        batch, each = _stage(model).batch, training.batch_size * training.processes
        if batch % each:
            raise ValueError(
                f"{place}.pre_experience.batch: {batch} is no multiple of the {each} sequences that the processes take "
                "at a time (training.batch_size x training.processes)"
            )


def _check_base(models: Mapping[str, ModelConfig], name: str, base: str) -> None:
    place = f"models.{name}.path"
    if base not in models or base == name:
        others = ", ".join(other for other in models if models[other].base is None)
        raise ValueError(f"{place}: {PRE_EXPERIENCED}{base} has to name another of models ({others})")
    if models[base].base is not None:
        raise ValueError(f"{place}: models.{base} is made by the pipeline too: name the model that it begins as")
    if models[base].task != "causal":
        raise ValueError(f"{place}: models.{base} has task {models[base].task}, but only a causal one can be trained")


def _stage(model: ModelConfig) -> PreExperienceOptions:
    assert model.pre_experience is not None
    return model.pre_experience


def stage_training(model: ModelConfig, training: TrainingConfig) -> TrainingConfig:
    """The training that makes a model: its recipe from the model's own section, the machine's part from `training`."""
    stage = _stage(model)
    machine = {name: getattr(training, name) for name in _OF_THE_MACHINE}
    return TrainingConfig(
        **machine,
        model=str(model.base),
        epochs=stage.epochs,
        learning_rate=stage.learning_rate,
        scheduler=stage.scheduler,
        warmup_ratio=stage.warmup_ratio,
        seed=stage.seed,
        gradient_accumulation=stage.batch // (training.batch_size * training.processes),
    )


def machine_settings(training: TrainingConfig) -> dict[str, Any]:
    """The machine's part of a training that changes what comes out, by its place in the configuration."""
    dumped = training.model_dump(mode="json")
    return {f"training.{name}": dumped[name] for name in _OF_THE_MACHINE if name not in _OPERATIONAL}
