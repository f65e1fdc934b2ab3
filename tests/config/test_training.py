"""Hyper-parameters that go together, the papers' recipes, and the section about positions."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config.models import ExtensionMethod, PositionExtension
from gateau_dagster.config.training import RECIPES, TrainingConfig

SHARED = {"processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}


def test_processes_share_any_rows_with_any_accumulation_and_loss() -> None:
    for changes in (
        {},
        {"batching": "sorted"},
        {"batching": "packed", "skip": {}},
        {"batching": "concatenated"},
        {"gradient_accumulation": 1},
        {"loss": "sequence"},
        {"loss": "longce"},
        {"loss": "far_gain"},
        {"lora": {}},
    ):
        assert TrainingConfig.model_validate(SHARED | changes).data_processes == 2


def made(**given: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(given)


def test_every_recipe_is_a_valid_training_on_one_and_on_eight_gpus() -> None:
    for name in RECIPES:
        for processes in (1, 8):
            training = made(preset=name, processes=processes)
            assert {key: getattr(training, key) for key in RECIPES[name] if key != "skip"} == {
                key: value for key, value in RECIPES[name].items() if key != "skip"
            }


def test_gateau_7b() -> None:
    training = made(preset="gateau-7b", processes=8)
    assert (training.batch_size * training.processes, training.passes_per_step) == (8, 12)
    assert (training.learning_rate, training.adam_betas, training.epochs) == (2e-5, (0.9, 0.95), 2)
    assert (training.max_length, training.truncation, training.dtype) == (65_536, "right", "bfloat16")
    assert made(preset="gateau-7b").passes_per_step == 96


def test_gateau_7b_scripts_differs_where_the_paper_is_silent() -> None:
    paper, scripts = made(preset="gateau-7b", processes=8), made(preset="gateau-7b-scripts", processes=8)
    changed = {name for name in type(paper).model_fields if getattr(paper, name) != getattr(scripts, name)}
    assert changed == {"preset", "scheduler", "batching", "loss"}
    assert (scripts.scheduler, scripts.min_learning_rate_ratio) == ("cosine", 0)
    assert (scripts.batching, scripts.loss) == ("sorted", "sequence")
    assert (scripts.warmup_ratio, scripts.weight_decay, scripts.max_grad_norm) == (0.03, 0, 1)
    assert (scripts.batch_size * scripts.processes, scripts.passes_per_step) == (8, 12)


def test_skipalign() -> None:
    training = made(preset="skipalign")
    assert (training.learning_rate, training.scheduler, training.warmup_ratio) == (1e-5, "linear", 0.03)
    assert (training.epochs, training.weight_decay, training.max_length) == (2, 0, 4_096)
    assert training.skip is not None
    assert (training.skip.strategy, training.skip.length, training.skip.probability) == ("outer", 100_000, 0.5)
    assert (training.adam_betas, training.max_grad_norm, training.min_learning_rate_ratio) == ((0.9, 0.95), 1, 0)
    assert (training.truncation, training.dtype, training.deepspeed) == ("right", "bfloat16", "zero3")
    assert (training.batching, training.loss) == ("padded", "token")


def test_prolong_sft() -> None:
    training = made(preset="prolong-sft", processes=8)
    assert training.passes_per_step * 8 * training.row_tokens == 4 * 2**20
    assert (training.passes_per_step, training.row_tokens, training.max_length) == (8, 65_536, 65_536)
    assert (training.learning_rate, training.min_learning_rate_ratio, training.epochs) == (2e-5, 0.1, 1)
    assert (training.adam_betas, training.weight_decay, training.max_grad_norm) == ((0.9, 0.95), 0.1, 1)
    assert (training.scheduler, training.warmup_ratio, training.batching) == ("cosine", 0.05, "packed")
    assert (training.loss, training.balanced, training.truncation) == ("token", True, "right")
    assert (training.dtype, training.deepspeed, training.gradient_checkpointing) == ("bfloat16", "zero3", True)


def test_keys_of_the_file_count_more() -> None:
    training = made(preset="skipalign", learning_rate=3e-5, skip={"length": 50_000})
    assert training.learning_rate == 3e-5
    assert training.skip is not None
    assert training.skip.length == 50_000
    assert made(preset="skipalign", skip=None).skip is None


@pytest.mark.parametrize("method", ["ntk", "yarn", "linear"])
def test_scaling_needs_a_target_and_no_base(method: ExtensionMethod) -> None:
    assert PositionExtension(method=method, target_length=65_536).target_length == 65_536
    with pytest.raises(ValidationError, match=f"method: {method} needs the key target_length"):
        PositionExtension(method=method)
    with pytest.raises(ValidationError, match="remove theta"):
        PositionExtension(method=method, target_length=65_536, theta=1e6)


def test_another_base_needs_the_base_and_may_declare_a_window() -> None:
    assert PositionExtension(method="theta", theta=8e6).target_length is None
    assert PositionExtension(method="theta", theta=8e6, target_length=65_536).target_length == 65_536
    with pytest.raises(ValidationError, match="needs the key theta"):
        PositionExtension(method="theta", target_length=65_536)
