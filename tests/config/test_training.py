"""Hyper-parameters that go together, and where processes may share a sequence."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config.training import TrainingConfig

SHARED = {"processes": 4, "sequence_parallel": 2, "deepspeed": "zero3"}


def test_plain_rows_with_any_accumulation_and_loss() -> None:
    for changes in (
        {},
        {"batching": "sorted"},
        {"batching": "concatenated"},
        {"gradient_accumulation": 1},
        {"loss": "sequence"},
        {"loss": "longce"},
    ):
        assert TrainingConfig.model_validate(SHARED | changes).data_processes == 2
    TrainingConfig.model_validate({"batching": "packed", "skip": {}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deepspeed": None}, "set deepspeed, to zero3 say"),
        ({"batching": "packed"}, "documents packed into one row would see one another"),
        ({"skip": {}}, "takes a skipped position for the border of a document"),
        ({"chunked_loss": False}, "leave chunked_loss true"),
        ({"lora": {}}, "not known to be exact with lora"),
        ({"liger": True}, "not known to be exact with lora or liger"),
    ],
)
def test_refused_with_a_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=f"sequence_parallel: .*{message}"):
        TrainingConfig.model_validate(SHARED | changes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequences_per_step": 10, "processes": 3}, "10 is no multiple of the 3 that one pass"),
        ({"tokens_per_step": 100}, "tokens_per_step: is for batching: packed"),
        ({"sequences_per_step": 4, "batching": "packed"}, "give tokens_per_step instead"),
        ({"tokens_per_step": 100, "batching": "packed", "max_length": 64}, r"batch_size x processes x pack_length"),
        ({"pack_length": 32, "max_length": 64, "batching": "packed"}, "32 is below max_length"),
        ({"processes": 4, "sequence_parallel": 3}, "3 does not divide processes"),
        ({"min_learning_rate_ratio": 0.1}, "is for scheduler: cosine, not linear"),
        ({"loss": "sequence", "chunked_loss": False}, "knows no weights"),
        ({"loss": "longce", "chunked_loss": False}, "leave it true with loss: longce"),
        ({"launcher": ["torchrun"], "hostfile": "hosts"}, "exclude each other"),
        ({"loss": "longce", "longce_gamma": 1e60}, r"longce_gamma[\s\S]*less than or equal to 1000000"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(given)
