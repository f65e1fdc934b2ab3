"""Where several processes may share a sequence (Ulysses), and where the result would not be the same."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateau_dagster.config.training import TrainingConfig


def check_sequence_parallel(training: "TrainingConfig") -> None:
    """Whether `training.sequence_parallel` computes what one process would.

    Raises:
        ValueError: it would not, or is not known to; the message says why, and what to change.
    """
    if training.sequence_parallel == 1:
        return
    if training.deepspeed is None:
        raise ValueError("sequence_parallel: DeepSpeed exchanges the parts of a sequence: set deepspeed, to zero3 say")
    if training.batching == "packed":
        raise ValueError(
            "sequence_parallel: every process sees a part of the heads and no mask, so documents packed into one row "
            "would see one another: set batching to padded or sorted"
        )
    if training.skip is not None:
        raise ValueError(
            "sequence_parallel: transformers' attention, which it uses, takes a skipped position for the border of a "
            "document: remove skip"
        )
    if not training.chunked_loss:
        raise ValueError(
            "sequence_parallel: the model's own loss shifts the labels within each process's part of the sequence: "
            "leave chunked_loss true"
        )
    if training.lora is not None or training.liger:
        raise ValueError("sequence_parallel: is not known to be exact with lora or liger: remove these")
