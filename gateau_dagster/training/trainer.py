"""Extend the Hugging Face Trainer with clear errors, complete checkpoints, figures per step and trackers."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.storage.files import prove_leases, replace_text
from gateau_dagster.training import checkpoints
from gateau_dagster.training.batch_plan import BatchPlan
from gateau_dagster.training.checkpoints import saving
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.metrics import StepLog
from gateau_dagster.training.sequence_parallel import SharedRows, trained_items
from gateau_dagster.training.used_settings import SETTINGS_NAME, used_settings

NAME = "gateau-training-data"
"""The data set's name in a tracker."""
_MLFLOW_DIGEST = 36  # characters, the limit of MLflow


def send_data(spec: TrainingSpec) -> None:
    """Send the files of `spec.data` to each tracker with an open run. Unchanged files add no version in W&B.

    Raises:
        GateauError: a tracker refuses the files, or is unreachable.
    """
    for tracker in spec.training.report_to if spec.data else ():
        if tracker not in _SENDERS:
            continue
        try:
            _SENDERS[tracker](spec)
        except Exception as error:  # error classes of the tracker and of its HTTP client
            reason = redacted(" ".join(str(error).split())) or type(error).__name__
            raise GateauError(
                "training.report_data",
                f"training.report_data: {tracker} does not take the data ({reason}). Correct its settings in the "
                "environment, or set report_data to false.",
            ) from error


def _to_wandb(spec: TrainingSpec) -> None:
    import wandb  # pyright: ignore[reportMissingImports]

    run = wandb.run
    assert run is not None, "the Trainer's callback has opened it"
    artifact = wandb.Artifact(NAME, type="dataset", metadata=_facts(spec))
    for name, path in sorted(spec.data.items()):
        artifact.add_file(str(path), name=name)
    # An offline run cannot list its inputs.
    if run.offline:
        run.log_artifact(artifact)
    else:
        run.use_artifact(artifact)


def _to_mlflow(spec: TrainingSpec) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]
    from mlflow.data.dataset_source_registry import resolve_dataset_source  # pyright: ignore[reportMissingImports]
    from mlflow.data.meta_dataset import MetaDataset  # pyright: ignore[reportMissingImports]

    for name, path in sorted(spec.data.items()):
        mlflow.log_artifact(str(path), "data")
        source = resolve_dataset_source(mlflow.get_artifact_uri(f"data/{path.name}"))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:_MLFLOW_DIGEST]
        data = MetaDataset(source, name=f"{NAME}/{name}", digest=digest)
        mlflow.log_input(data, context="training", tags=_facts(spec))


def _facts(spec: TrainingSpec) -> dict[str, str]:
    return {**spec.provenance, "fingerprint": spec.fingerprint}


_SENDERS: Mapping[str, Callable[[TrainingSpec], Any]] = {"wandb": _to_wandb, "mlflow": _to_mlflow}


def barrier() -> None:
    """Wait for every rank; do nothing in one process."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


class ResponseTrainer(Trainer):
    """Trainer with a loss over the response tokens of the whole global batch.

    The Trainer counts the labelled tokens of a step over all ranks and accumulated passes. The model divides its summed
    loss by this number. A loss that is not finite stops training with an error that names the samples.

    change_model: called once before training, after Liger's kernels and gradient checkpointing are in place.
    by_weight: whether the sum of the weights of labelled tokens replaces their number, as for the weights of LongAlign
        and `far_gain`. Those of LongCE and EXACT are not normalised.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.change_model: Callable[[], None] | None = None
        self.by_weight = False
        if self.get_sp_size() > 1:
            self.loss_is_scaled_for_ga = True
            # Every rank of a group already has its part of the batch.
            self.accelerator.deepspeed_ulysses_dl_adapter = lambda loader, _: loader  # pyright: ignore

    def _prepare_for_training(self, *arguments: Any, **options: Any) -> Any:
        if self.change_model is not None:
            self.change_model()
        return super()._prepare_for_training(*arguments, **options)

    def _get_dataloader(self, dataset: Dataset[Any], *arguments: Any, **options: Any) -> DataLoader[Any]:
        if (size := self.get_sp_size()) > 1:
            assert isinstance(dataset, MixRows)
            dataset = SharedRows(dataset, size=size, rows_per_batch=self.args.per_device_train_batch_size)
        return super()._get_dataloader(dataset, *arguments, **options)

    def _prepare_input(self, data: Any) -> Any:
        # The Trainer would convert weights of tokens to DeepSpeed's type.
        if isinstance(data, torch.Tensor) and data.is_floating_point():
            return data.to(self.args.device)
        return super()._prepare_input(data)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor | int | None:
        if self.get_sp_size() > 1:
            counted = trained_items(batch_samples, by_weight=self.by_weight)
            return self.accelerator.gather(counted.to(device)[None]).sum()  # pyright: ignore
        if not batch_samples or not self.by_weight:
            return super()._get_num_items_in_batch(batch_samples, device)
        counted = [batch["weights"][..., 1:][batch["labels"][..., 1:] != IGNORED].sum() for batch in batch_samples]
        total = torch.stack(counted).sum().to(device)
        return self.accelerator.gather(total[None]).sum() if self.args.world_size > 1 else total  # pyright: ignore

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Compute the Trainer's loss after removing the row numbers from the batch.

        Raises:
            GateauError: the loss is NaN or infinite.
        """
        inputs = dict(inputs)
        rows = inputs.pop("row")
        if self.get_sp_size() > 1:
            loss = self._loss_of_part(model(**inputs, num_items_in_batch=num_items_in_batch).loss)
        else:
            loss = super().compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        # Reading the value waits for the device, once per pass. That is the price of an error that names the samples.
        value = (loss[0] if isinstance(loss, tuple) else loss).detach()
        if not torch.isfinite(value):
            assert isinstance(self.train_dataset, MixRows)
            raise unstable("loss", float(value), self.state.global_step + 1, self.train_dataset.ids_of(rows.tolist()))
        return loss

    def _loss_of_part(self, loss: torch.Tensor) -> torch.Tensor:
        """Scale the loss of a part so that value and gradient are those of the sum over all parts.

        The value is multiplied by the number of ranks, because the Trainer reports the mean over them. The gradient is
        multiplied by the number by which DeepSpeed divides the sum over ranks. ZeRO-3 divides by the number of ranks,
        lower stages by the number of groups (observed in DeepSpeed 0.19.8).
        """
        ranks = self.args.world_size
        engine: Any = self.deepspeed
        divisor = ranks if engine.zero_optimization_stage() == 3 else ranks // self.get_sp_size()
        return loss * divisor + (loss * (ranks - divisor)).detach()

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        work = Path(str(self.args.output_dir))
        prove_leases()
        with saving("a checkpoint", work, torn=checkpoints.of_step(work, self.state.global_step)):
            super()._save_checkpoint(model, trial)


def unstable(figure: str, value: float, step: int, sample_ids: list[str]) -> GateauError:
    """Return the error for a training run that has diverged."""
    return GateauError(
        "training.diverged",
        f"the {figure} is {value} at step {step}; the batch's samples: {', '.join(sample_ids)}. "
        "Look at these samples, lower training.learning_rate, or use dtype bfloat16 or float32.",
    )


class TrainingCallback(TrainerCallback):
    """Callback that, on rank 0, logs settings and steps and marks complete checkpoints.

    It checks the gradient on every rank.
    """

    def __init__(
        self, spec: TrainingSpec, trainer: ResponseTrainer, plan: BatchPlan, rows: MixRows, log: StepLog
    ) -> None:
        self._spec, self._trainer, self._plan, self._rows, self._log = spec, trainer, plan, rows, log

    def on_train_begin(self, args: TrainingArguments, _: TrainerState, __: TrainerControl, **kwargs: Any) -> None:
        """Record the settings that the run uses.

        Raises:
            GateauError: Liger has no kernels for this model, or a tracker refuses the data.
        """
        settings = used_settings(
            self._trainer, kwargs["optimizer"], kwargs["lr_scheduler"], plan=self._plan, rows=self._rows
        )
        if self._spec.training.liger and not settings["model"]["liger_kernels"]:
            raise GateauError(
                "training.architecture",
                f"training.liger: Liger has no kernels for {settings['model']['class']}. Set training.liger to false.",
            )
        if args.process_index == 0:
            with saving("the training's settings", self._spec.work):
                replace_text(self._spec.work / SETTINGS_NAME, json.dumps(settings, indent=1))
            send_data(self._spec)  # the callbacks of trackers run before this one

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
            raise unstable("gradient's norm", norm, state.global_step, self._rows.ids_of_step(state.global_step))
        if args.process_index == 0:
            prove_leases()
            rate = logs["learning_rate"]
            with saving("the training log", self._spec.log):
                self._log.record(state.global_step, loss=logs["loss"], learning_rate=rate, grad_norm=norm)

    def on_save(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        """Mark the checkpoint as complete after all ranks have written their parts."""
        barrier()
        if args.process_index == 0:
            prove_leases()
            with saving("a checkpoint", self._spec.work):
                checkpoints.mark_complete(
                    checkpoints.of_step(self._spec.work, state.global_step), self._spec.resume_key
                )
        barrier()
