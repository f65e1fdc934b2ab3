"""Hyper-parameters that go together, and where processes may share a sequence."""

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
