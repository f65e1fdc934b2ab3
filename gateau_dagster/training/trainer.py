"""The Hugging Face Trainer with what it lacks: readable failures, complete checkpoints, figures a step."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gateau_dagster.errors import GateauError
from gateau_dagster.training import checkpoints
from gateau_dagster.training.batches import MixRows
from gateau_dagster.training.metrics import StepLog
from gateau_dagster.training.order import Layout
from gateau_dagster.training.spec import TrainingSpec

SAVE_ERRORS = (OSError, SafetensorError, RuntimeError)
"""What a full disk raises: Python's error, safetensors', and torch's RuntimeError from its file writer."""


def barrier() -> None:
    """Wait for every rank; nothing to do in one process."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def save_failure(what: str, where: Path, error: BaseException) -> GateauError:
    """The message for a save that failed."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return GateauError(
        f"{what} could not be written to {where}: {reason}. Free disk space (or check permissions) and run again: "
        "training goes on from the last complete checkpoint."
    )


class ResponseTrainer(Trainer):
    """Loss over the response tokens of the whole global batch. Stops at a loss that is not finite, naming samples."""

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """As the Trainer's, after taking the row numbers out of the batch.

        Raises:
            GateauError: the loss is NaN or infinite.
        """
        inputs = dict(inputs)
        rows = inputs.pop("row")
        loss = super().compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        value = (loss[0] if isinstance(loss, tuple) else loss).detach()
        if not torch.isfinite(value):
            assert isinstance(self.train_dataset, MixRows)
            raise unstable("loss", float(value), self.state.global_step + 1, self.train_dataset.ids_of(rows.tolist()))
        return loss

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except SAVE_ERRORS as error:
            raise save_failure("a checkpoint", Path(str(self.args.output_dir)), error) from error


def unstable(figure: str, value: float, step: int, sample_ids: list[str]) -> GateauError:
    """The message for a training that has come apart."""
    return GateauError(
        f"the {figure} is {value} at step {step}; the batch's samples: {', '.join(sample_ids)}. "
        "Look at these samples, lower training.learning_rate, or use dtype bfloat16 or float32."
    )


class TrainingCallback(TrainerCallback):
    """Logs every step and marks checkpoints as complete, on rank 0; watches the gradient on every rank."""

    def __init__(self, spec: TrainingSpec, rows: MixRows, layout: Layout, log: StepLog) -> None:
        self._spec, self._rows, self._layout, self._log = spec, rows, layout, log

    def on_log(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **kwargs: Any) -> None:
        """Record the step.

        Raises:
            GateauError: the gradient is not finite (float16 scales its loss and skips such a step by itself).
        """
        logs = kwargs["logs"]
        if "loss" not in logs:
            return  # the Trainer's closing summary
        norm = logs.get("grad_norm")
        if norm is not None and not math.isfinite(norm) and self._spec.training.dtype != "float16":
            ids = self._rows.ids_of(self._layout.step_rows(state.global_step))
            raise unstable("gradient's norm", norm, state.global_step, ids)
        if args.process_index == 0:
            rate = logs["learning_rate"]
            try:
                self._log.record(state.global_step, loss=logs["loss"], learning_rate=rate, grad_norm=norm)
            except OSError as error:
                raise save_failure("the training log", self._spec.log, error) from error

    def on_save(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        """All ranks have written their part: now, and only now, the checkpoint counts."""
        barrier()
        if args.process_index == 0:
            checkpoints.mark_complete(self._spec.work / f"checkpoint-{state.global_step}")
        barrier()
