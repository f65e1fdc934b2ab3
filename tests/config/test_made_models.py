"""Models that the pipeline makes: what is wrong with their sections is said before any model runs, and how they are
trained."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.config.made_models import machine_settings, place_of, stage_training
from gateau_dagster.config.models import (
    HomologousOptions,
    PositionExtension,
    PreExperienceOptions,
    base_of,
    homologous_base_of,
)
from tests.kit.project import configured

CHERRY = {"path": "pre_experienced:long"}
PROLONG: dict[str, Any] = {
    "path": "homologous:short",
    "homologous": {"texts": "books", "length": 1024, "tokens_per_step": 8192},
}


def with_models(models: dict[str, Any], **sections: Any) -> Config:
    pair = {"short": {"path": "s"}, "long": {"path": "l"}}
    return configured(models={**pair, **models}, folder=Path(), **sections)


def cherry(**options: Any) -> dict[str, Any]:
    return {**CHERRY, "pre_experience": options}


def prolong(**options: Any) -> dict[str, Any]:
    return {**PROLONG, "homologous": {**PROLONG["homologous"], **options}}


def test_a_path_names_the_model_that_it_is_made_from() -> None:
    assert base_of("pre_experienced:long") == "long" and homologous_base_of("homologous:short") == "short"
    assert base_of("long") is homologous_base_of("short") is base_of("s3://x") is None


def test_what_is_made_and_from_what() -> None:
    models = {"cherry": {"path": "pre_experienced:short"}, "long": PROLONG, "lac": PROLONG}
    config = with_models(models, training={"model": "lac"})
    assert config.made_models == ["long", "cherry", "lac"]
    assert (config.pre_experienced_models, config.homologous_models) == (["cherry"], ["long", "lac"])
    assert [config.origin(name) for name in ("long", "cherry", "short")] == ["short", "short", "short"]
    assert config.models["cherry"].pre_experience == PreExperienceOptions(), "its defaults, without a section"
    assert config.models["long"].pre_experience is None
    again = Config.model_validate({**config.model_dump(mode="json"), "folder": Path()})
    assert again == config, "the configuration that the report prints gives the same one"


def test_a_pre_experienced_model_s_recipe_is_its_own_and_the_machine_that_of_training() -> None:
    stage = {"epochs": 2, "learning_rate": 1e-3, "scheduler": "constant", "warmup_ratio": 0.5, "seed": 7, "batch": 12}
    given = {"batch_size": 3, "processes": 2, "max_length": 99, "dtype": "float32", "save_steps": 5}
    curves = {"report_to": ["tensorboard", "mlflow"], "liger": True}
    recipe = {"epochs": 9, "learning_rate": 1.0, "max_steps": 4, "weight_decay": 0.5, "seed": 1, "enabled": False}
    config = with_models({"cherry": cherry(**stage)}, training={**given, **curves, **recipe})
    found = stage_training(config.models["cherry"], config.training)
    wanted = {name: value for name, value in stage.items() if name != "batch"}
    assert found == TrainingConfig.model_validate(
        {**given, **curves, **wanted, "gradient_accumulation": 2, "model": "long"}
    )


def test_a_homologous_model_s_recipe_is_its_own_and_the_machine_that_of_training() -> None:
    recipe = {"learning_rate": 1e-3, "weight_decay": 0.5, "seed": 7, "adam_betas": (0.8, 0.9), "max_grad_norm": 2.0}
    machine = {"batch_size": 2, "processes": 2, "dtype": "float32", "save_steps": 5, "gradient_checkpointing": True}
    curves = {"report_to": ["wandb"], "liger": True}
    other = {"max_length": 99, "learning_rate": 1.0, "max_steps": 4, "seed": 1, "epochs": 3, "skip": {"length": 9}}
    config = with_models({"long": prolong(**recipe)}, training={**machine, **curves, **other})
    found = stage_training(config.models["long"], config.training)
    assert found == TrainingConfig.model_validate(
        {
            **machine,
            **curves,
            **recipe,
            "model": "short",
            "epochs": 1,
            "batching": "packed",
            "max_length": 1024,
            "pack_length": 1024,
            "tokens_per_step": 8192,
            "scheduler": "cosine",
            "min_learning_rate_ratio": 0.1,
            "warmup_ratio": 0.1,
            "positions": {"method": "ntk", "target_length": 1024},
        }
    )
    assert found.passes_per_step == 2
    exact = with_models({"long": prolong(loss="exact")}).models["long"]
    assert stage_training(exact, TrainingConfig()).loss == "exact" != found.loss == "token"
    dumped = HomologousOptions(texts=["books"]).model_dump()
    assert "loss" not in dumped, "a configuration without it keeps its earlier dump"
    linear = with_models({"long": prolong(scheduler="linear")}).models["long"]
    assert stage_training(linear, TrainingConfig()).min_learning_rate_ratio == 0


def test_processes_share_its_sequences_as_those_of_the_training() -> None:
    given = {"processes": 8, "sequence_parallel": 4, "deepspeed": "zero3", "batch_size": 2}
    config = with_models({"cherry": cherry(batch=12)}, training=given)
    found = stage_training(config.models["cherry"], config.training)
    assert (found.sequence_parallel, found.data_processes, found.passes_per_step) == (4, 2, 3)
    with pytest.raises(ValidationError, match=r"pre_experience\.batch: 10 is not a multiple of 4"):
        with_models({"cherry": cherry(batch=10)}, training=given)


def test_its_packed_rows_are_shared_by_processes_too() -> None:
    given = {"processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}
    config = with_models({"long": PROLONG}, training=given)
    found = stage_training(config.models["long"], config.training)
    assert (found.batching, found.sequence_parallel, found.data_processes) == ("packed", 2, 2)
    assert (found.passes_per_step, config.training.data_processes) == (4, 2)


def test_the_window_that_is_declared_is_the_length_unless_more_is_asked_for() -> None:
    def extension(**options: Any) -> PositionExtension:
        return HomologousOptions(texts="t", length=512, **options).extension

    assert extension() == PositionExtension(method="ntk", target_length=512)
    theta = PositionExtension(method="theta", theta=8e6)
    assert extension(positions=theta) == PositionExtension(method="theta", theta=8e6, target_length=512)
    farther = PositionExtension(method="yarn", target_length=4096)
    assert extension(positions=farther) == farther


def test_every_setting_of_training_is_the_machines_or_of_the_recipe() -> None:
    """A setting more has to be thought of: one that is in neither is dropped in silence."""
    recipe = {
        *{"model", "epochs", "learning_rate", "adam_betas", "weight_decay", "max_grad_norm", "scheduler"},
        *{"min_learning_rate_ratio", "warmup_ratio", "batching", "gradient_accumulation", "sequences_per_step"},
        *{"tokens_per_step", "pack_length", "positions", "seed"},
    }
    only_of_the_checkpoint = {"enabled", "preset", "mix", "max_steps", "balanced", "loss", "skip", "lora"}
    only_of_the_checkpoint |= {"longce_gamma", "trained_turns", "report_data", "trim"}
    model = with_models({"cherry": CHERRY}).models["cherry"]
    machine = {name for name in TrainingConfig.model_fields if place_of("cherry", model, name) == f"training.{name}"}
    assert machine.isdisjoint(recipe | only_of_the_checkpoint)
    assert machine | recipe | only_of_the_checkpoint == {*TrainingConfig.model_fields}


def test_settings_of_the_machine_that_change_no_result_are_left_out() -> None:
    base = TrainingConfig()
    changes = {
        "max_length": 99,
        "dtype": "float32",
        "batch_size": 2,
        "processes": 3,
        "deepspeed": "zero2",
        "liger": True,
        "sequence_parallel": 3,
    }
    for name, value in changes.items():
        assert machine_settings(base.model_copy(update={name: value}))[f"training.{name}"] == value
    operational = base.model_copy(
        update={"save_steps": 3, "gradient_checkpointing": True, "enabled": False, "report_to": ["wandb"]}
    )
    assert machine_settings(operational) == machine_settings(base)
