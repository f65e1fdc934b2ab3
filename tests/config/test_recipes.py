"""`training.preset`: the papers' numbers, and what a file says beside them."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config.recipes import RECIPES
from gateau_dagster.config.training import TrainingConfig


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


def test_skipalign() -> None:
    training = made(preset="skipalign")
    assert (training.learning_rate, training.scheduler, training.warmup_ratio) == (1e-5, "linear", 0.03)
    assert (training.epochs, training.weight_decay, training.max_length) == (2, 0, 4_096)
    assert training.skip is not None
    assert (training.skip.strategy, training.skip.length, training.skip.probability) == ("outer", 100_000, 0.5)


def test_prolong_sft() -> None:
    training = made(preset="prolong-sft", processes=8)
    assert training.passes_per_step * 8 * training.row_tokens == 4 * 2**20
    assert (training.scheduler, training.warmup_ratio, training.batching) == ("cosine", 0.05, "packed")
    assert (training.loss, training.balanced) == ("token", True)


def test_keys_of_the_file_count_more() -> None:
    training = made(preset="skipalign", learning_rate=3e-5, skip={"length": 50_000})
    assert training.learning_rate == 3e-5
    assert training.skip is not None
    assert training.skip.length == 50_000
    assert made(preset="skipalign", skip=None).skip is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "gateau-13b"}, "'gateau-13b' is none of gateau-7b, skipalign, prolong-sft"),
        ({"sequences_per_step": 10, "processes": 3}, "10 is no multiple of the 3 that one pass"),
        ({"tokens_per_step": 100}, "tokens_per_step: is for batching: packed"),
        ({"sequences_per_step": 4, "batching": "packed"}, "give tokens_per_step instead"),
        ({"tokens_per_step": 100, "batching": "packed", "max_length": 64}, r"batch_size x processes x pack_length"),
        ({"pack_length": 32, "max_length": 64, "batching": "packed"}, "32 is below max_length"),
        ({"processes": 4, "sequence_parallel": 3}, "3 does not divide processes"),
        ({"min_learning_rate_ratio": 0.1}, "is for scheduler: cosine, not linear"),
        ({"loss": "sequence", "chunked_loss": False}, "knows no weights"),
        ({"launcher": ["torchrun"], "hostfile": "hosts"}, "exclude each other"),
    ],
)
def test_what_does_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made(**given)
