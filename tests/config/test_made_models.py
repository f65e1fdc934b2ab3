"""Models that the pipeline makes: what is wrong with their sections is said before any model runs."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.config.made_models import _OF_THE_MACHINE, machine_settings, stage_training
from gateau_dagster.config.model_stages import PreExperienceOptions, base_of

CHERRY = {"path": "pre_experienced:long"}


def configured(models: dict[str, Any], **sections: Any) -> Config:
    pair = {"short": {"path": "s"}, "long": {"path": "l"}}
    return Config.model_validate(
        {"long_sft": {"path": "long.jsonl"}, "models": {**pair, **models}, "folder": Path(), **sections}
    )


def test_a_path_names_the_model_that_it_is_made_from() -> None:
    assert base_of("pre_experienced:long") == "long"
    assert base_of("long") is None and base_of("s3://x") is None


def test_the_stage_has_its_defaults_without_a_section() -> None:
    config = configured({"cherry": CHERRY})
    assert config.models["cherry"].pre_experience == PreExperienceOptions()
    assert config.models["long"].pre_experience is None
    assert (config.made_models, config.origin("cherry"), config.origin("short")) == (["cherry"], "long", "short")
    again = Config.model_validate({**config.model_dump(mode="json"), "folder": Path()})
    assert again == config, "the configuration that the report prints gives the same one"


@pytest.mark.parametrize(
    ("models", "sections", "mistake"),
    [
        (
            {"cherry": {"path": "pre_experienced:lang"}},
            {},
            r"models\.cherry\.path: .*lang has to name.*\(short, long\)",
        ),
        ({"cherry": {"path": "pre_experienced:cherry"}}, {}, r"models\.cherry\.path: .* has to name another"),
        (
            {"cherry": CHERRY, "two": {"path": "pre_experienced:cherry"}},
            {},
            r"models\.two\.path: models\.cherry is made",
        ),
        (
            {"enc": {"path": "e", "task": "embedding"}, "cherry": {"path": "pre_experienced:enc"}},
            {},
            r"models\.cherry\.path: models\.enc has task embedding",
        ),
        ({"cherry": {**CHERRY, "task": "reward"}}, {}, r"models\.cherry\.task: reward"),
        ({"cherry": {**CHERRY, "revision": "v2"}}, {}, r"models\.cherry\.revision: .*models\.long the revision"),
        ({"long": {"path": "pre_experienced:short"}}, {}, r"models\.long\.path: .*another name"),
        ({"cherry": CHERRY}, {"training": {"model": "cherry"}}, r"training\.model: .*train long"),
        (
            {"cherry": {"path": "c", "pre_experience": {}}},
            {},
            r"models\.cherry\.pre_experience: only a model with path",
        ),
        (
            {"cherry": {**CHERRY, "pre_experience": {"batch": 10}}},
            {"training": {"batch_size": 2, "processes": 2}},
            r"models\.cherry\.pre_experience\.batch: 10 is no multiple of the 4",
        ),
        ({"cherry": {**CHERRY, "pre_experience": {"cluster": 3}}}, {}, r"pre_experience\.cluster\n.*not permitted"),
    ],
)
def test_what_is_wrong_is_named(models: dict[str, Any], sections: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValidationError, match=mistake):
        configured(models, **sections)


def test_the_recipe_is_the_stages_and_the_machine_is_that_of_training() -> None:
    stage = {"epochs": 2, "learning_rate": 1e-3, "scheduler": "constant", "warmup_ratio": 0.5, "seed": 7, "batch": 12}
    given = {"batch_size": 3, "processes": 2, "max_length": 99, "dtype": "float32", "save_steps": 5}
    recipe = {"epochs": 9, "learning_rate": 1.0, "max_steps": 4, "weight_decay": 0.5, "seed": 1, "enabled": False}
    config = configured({"cherry": {**CHERRY, "pre_experience": stage}}, training={**given, **recipe})
    found = stage_training(config.models["cherry"], config.training)
    wanted = {name: value for name, value in stage.items() if name != "batch"}
    assert found == TrainingConfig.model_validate({**given, **wanted, "gradient_accumulation": 2, "model": "long"})


def test_processes_share_its_sequences_as_those_of_the_training() -> None:
    given = {"processes": 8, "sequence_parallel": 4, "deepspeed": "zero3", "batch_size": 2}
    config = configured({"cherry": {**CHERRY, "pre_experience": {"batch": 12}}}, training=given)
    found = stage_training(config.models["cherry"], config.training)
    assert (found.sequence_parallel, found.data_processes, found.passes_per_step) == (4, 2, 3)
    with pytest.raises(ValidationError, match=r"pre_experience\.batch: 10 is no multiple of the 4 sequences"):
        configured({"cherry": {**CHERRY, "pre_experience": {"batch": 10}}}, training=given)


def test_curves_and_kernels_are_those_of_the_training() -> None:
    config = configured({"cherry": CHERRY}, training={"report_to": ["tensorboard", "mlflow"], "liger": True})
    found = stage_training(config.models["cherry"], config.training)
    assert (found.report_to, found.liger) == (["tensorboard", "mlflow"], True)


def test_every_setting_of_training_is_the_machines_or_of_the_recipe() -> None:
    """A setting more has to be thought of: one that is in neither is dropped in silence."""
    recipe = {
        *{"model", "epochs", "learning_rate", "adam_betas", "weight_decay", "max_grad_norm", "scheduler"},
        *{"min_learning_rate_ratio", "warmup_ratio", "batching", "gradient_accumulation", "sequences_per_step"},
        *{"tokens_per_step", "pack_length", "positions", "seed"},
    }
    only_of_the_checkpoint = {"enabled", "preset", "mix", "max_steps", "balanced", "loss", "skip", "lora"}
    assert {*_OF_THE_MACHINE}.isdisjoint(recipe | only_of_the_checkpoint)
    assert {*_OF_THE_MACHINE} | recipe | only_of_the_checkpoint == {*TrainingConfig.model_fields}


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
