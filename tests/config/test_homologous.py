"""Homologous models in the configuration: what they are trained with, and what is wrong with their sections."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config import Config, TrainingConfig
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.config.model_stages import HomologousOptions, homologous_base_of
from gateau_dagster.config.training_sections import PositionExtension

LONG = {"path": "homologous:short", "homologous": {"texts": "books", "length": 1024, "tokens_per_step": 8192}}


def configured(models: dict[str, Any], **sections: Any) -> Config:
    content = {"long_sft": {"path": "long.jsonl"}, "models": {"short": {"path": "s"}, **models}, **sections}
    return Config.model_validate({**content, "folder": Path()})


def changed(**options: Any) -> dict[str, Any]:
    return {**LONG, "homologous": {**LONG["homologous"], **options}}  # pyright: ignore[reportGeneralTypeIssues]


def test_it_may_be_theta_b_and_may_be_trained_further() -> None:
    config = configured({"long": LONG, "lac": LONG}, training={"model": "long"})
    assert homologous_base_of("homologous:short") == "short" and homologous_base_of("short") is None
    assert config.homologous_models == config.made_models == ["long", "lac"]
    assert config.pre_experienced_models == []
    assert (config.origin("long"), config.origin("short")) == ("short", "short")
    again = Config.model_validate({**config.model_dump(mode="json"), "folder": Path()})
    assert again == config, "the configuration that the report prints gives the same one"


@pytest.mark.parametrize(
    ("models", "sections", "mistake"),
    [
        ({"long": {"path": "homologous:short"}}, {}, r"models\.long\.homologous\.texts\n.*required"),
        ({"long": {**LONG, "path": "homologous:sort"}}, {}, r"models\.long\.path: .*sort has to name.*\(short\)"),
        ({"long": {**LONG, "path": "homologous:long"}}, {}, r"models\.long\.path: .*has to name another"),
        ({"long": {**LONG, "path": "homologous:"}}, {}, r"models\.long\.path: homologous: has to name"),
        ({"long": LONG, "two": {**LONG, "path": "homologous:long"}}, {}, r"models\.two\.path: models\.long is made"),
        (
            {"enc": {"path": "e", "task": "embedding"}, "long": {**LONG, "path": "homologous:enc"}},
            {},
            r"models\.long\.path: models\.enc has task embedding",
        ),
        ({"long": {"path": "l"}, "short": {**LONG, "path": "homologous:long"}}, {}, r"models\.short\.path: theta_A"),
        ({"lac": {**LONG, "task": "reward"}}, {"training": {"enabled": False}}, r"models\.lac\.task: reward"),
        ({"long": {**LONG, "revision": "v2"}}, {}, r"models\.long\.revision: .*models\.short the revision"),
        ({"long": {**LONG, "rope_theta": 1e6}}, {}, r"models\.long\.rope_theta: .*homologous\.positions"),
        ({"long": {**LONG, "path": "l"}}, {}, r"models\.long\.homologous: only a model with path homologous:"),
        (
            {"long": {"path": "l"}, "c": {"path": "c", "pre_experience": {}}},
            {},
            r"models\.c\.pre_experience: only",
        ),
        ({"long": {**LONG, "pre_experience": {}}}, {}, r"models\.long\.pre_experience: only"),
        ({"long": changed(length=128)}, {}, r"models\.long\.homologous\.length: 128 tokens hold no segment of .*128"),
        (
            {"long": changed(tokens_per_step=3000)},
            {},
            r"models\.long\.homologous\.tokens_per_step: 3000 is no multiple of the 1024",
        ),
        (
            {"long": LONG},
            {"training": {"batch_size": 3, "processes": 2}},
            r"models\.long\.homologous\.tokens_per_step: 8192 is no multiple of the 6144",
        ),
        ({"long": changed(long_share=0)}, {}, r"long_share\n.*greater than 0"),
        ({"long": changed(text="t")}, {}, r"homologous\.text\n.*not permitted"),
    ],
)
def test_what_is_wrong_is_named(models: dict[str, Any], sections: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ValidationError, match=mistake):
        configured(models, selection={"method": "length"}, **sections)


def test_the_recipe_is_the_models_and_the_machine_is_that_of_training() -> None:
    recipe = {"learning_rate": 1e-3, "weight_decay": 0.5, "seed": 7, "adam_betas": (0.8, 0.9), "max_grad_norm": 2.0}
    machine = {"batch_size": 2, "processes": 2, "dtype": "float32", "save_steps": 5, "gradient_checkpointing": True}
    other = {"max_length": 99, "learning_rate": 1.0, "max_steps": 4, "seed": 1, "epochs": 3, "skip": {"length": 9}}
    config = configured({"long": changed(**recipe)}, training={**machine, **other})
    found = stage_training(config.models["long"], config.training)
    assert found == TrainingConfig.model_validate(
        {
            **machine,
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
    curves = configured({"long": LONG}, training={"report_to": ["wandb"], "liger": True})
    made = stage_training(curves.models["long"], curves.training)
    assert (made.report_to, made.liger) == (["wandb"], True)
    linear = configured({"long": changed(scheduler="linear")}).models["long"]
    assert stage_training(linear, TrainingConfig()).min_learning_rate_ratio == 0


def test_its_packed_rows_are_not_shared_by_processes() -> None:
    given = {"processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}
    config = configured({"long": LONG}, training=given)
    found = stage_training(config.models["long"], config.training)
    assert (found.batching, found.sequence_parallel, found.data_processes) == ("packed", 1, 4)
    assert (found.passes_per_step, config.training.data_processes) == (2, 2)


def test_the_window_that_is_declared_is_the_length_unless_more_is_asked_for() -> None:
    def extension(**options: Any) -> PositionExtension:
        return HomologousOptions(texts="t", length=512, **options).extension

    assert extension() == PositionExtension(method="ntk", target_length=512)
    theta = PositionExtension(method="theta", theta=8e6)
    assert extension(positions=theta) == PositionExtension(method="theta", theta=8e6, target_length=512)
    farther = PositionExtension(method="yarn", target_length=4096)
    assert extension(positions=farther) == farther
