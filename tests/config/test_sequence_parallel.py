"""Where processes may share a sequence, and the reason where they may not."""

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
