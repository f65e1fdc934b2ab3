"""One training from its specification to its output folder, resumed where the last attempt left a complete checkpoint.

Hugging Face Trainer, with DeepSpeed where the specification has its configuration; every rank calls `train`.

Precision: master weights are float32. On one process or with plain data parallelism, `bfloat16` and `float16` are
autocast, on CPU (bfloat16 only) as on GPU; under DeepSpeed the model itself is in that type and the optimiser holds the
float32 master weights. `float16` needs a GPU.
"""

import math
import os
from pathlib import Path

import polars as pl
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from gateau_dagster.errors import GateauError
from gateau_dagster.tables import TRAINING_MIX, schema
from gateau_dagster.training import checkpoints
from gateau_dagster.training.batches import MixRows, PadRight
from gateau_dagster.training.deepspeed_config import join_by_gloo
from gateau_dagster.training.metrics import Report, StepLog, rewind_log
from gateau_dagster.training.model import is_finished, load_base, write_output
from gateau_dagster.training.order import training_layout
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.trainer import ResponseTrainer, TrainingCallback, barrier


def train(spec: TrainingSpec, report: Report) -> None:
    """Train, or go on training; nothing is done if the output folder already holds this training's result.

    Args:
        spec: the training; its `training.processes` must be the number of ranks.
        report: called on rank 0 after each step with the metrics of `StepLog`.

    Raises:
        GateauError: the mix, the base model or the settings cannot be used, the loss is not finite, or a save failed.
    """
    if is_finished(spec):
        if os.environ.get("RANK", "0") == "0":
            checkpoints.discard_all(spec.work)  # what a kill between the last write and the clean-up left
        return
    _check(spec)
    disable_progress_bar()
    mix = read_mix(spec.mix)
    training = spec.training
    layout = training_layout(
        mix.height,
        epochs=training.epochs,
        max_steps=training.max_steps,
        global_batch=spec.global_batch,
        seed=training.seed,
    )
    rows = MixRows(mix, layout)
    # First the arguments: they start the process group, and ZeRO-3 must be known before the model is loaded.
    arguments = training_arguments(spec, steps=layout.steps)
    if spec.deepspeed is not None and arguments.use_cpu:
        join_by_gloo()
    resumed = _prepare(spec, rank=arguments.process_index)
    model, tokenizer = load_base(spec, longest=max(rows.lengths))
    trainer = _make_trainer(model, tokenizer, arguments, rows)
    first_step = 0 if resumed is None else checkpoints.step_of(resumed)
    log = StepLog(spec.log, rows=rows, first_step=first_step, total=layout.steps, report=report)
    trainer.add_callback(TrainingCallback(spec, rows, layout, log))
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    write_output(trainer, tokenizer, spec)
    if arguments.process_index == 0:
        checkpoints.discard_all(spec.work)


def _make_trainer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, arguments: TrainingArguments, rows: MixRows
) -> ResponseTrainer:
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    trainer = ResponseTrainer(model=model, args=arguments, train_dataset=rows, data_collator=PadRight(pad_token_id=pad))
    if not trainer.model_accepts_loss_kwargs:
        raise GateauError(
            f"{type(model).__name__} cannot average its loss over a global batch: its forward takes no loss arguments. "
            "Train another architecture."
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def read_mix(path: Path) -> pl.DataFrame:
    """The training mix (`tables.TRAINING_MIX`).

    Raises:
        GateauError: it cannot be read, lacks a column, or is empty.
    """
    try:
        mix = pl.read_parquet(path, columns=list(schema(TRAINING_MIX)))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise GateauError(f"the training mix {path} cannot be read ({error}). Materialise it again.") from error
    if mix.is_empty():
        raise GateauError(f"the training mix {path} is empty. Select more samples or add short_chat.")
    return mix


def _check(spec: TrainingSpec) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != spec.training.processes:
        raise GateauError(
            f"training.processes is {spec.training.processes}, but {ranks} rank(s) run. Use `training_command`."
        )
    if spec.training.dtype == "float16" and not torch.cuda.is_available():
        raise GateauError("training.dtype float16 needs a GPU. Use bfloat16 or float32.")


def _prepare(spec: TrainingSpec, *, rank: int) -> Path | None:
    """The checkpoint to go on from, agreed by all ranks: rank 0 cleans up before the others look."""
    if rank == 0:
        resumed = checkpoints.prepare_work(spec.work, spec.resume_key)
        rewind_log(spec.log, 0 if resumed is None else checkpoints.step_of(resumed))
    barrier()
    return checkpoints.last_checkpoint(spec.work)


def training_arguments(spec: TrainingSpec, *, steps: int) -> TrainingArguments:
    """The Trainer's arguments for `steps` optimiser steps over the laid-out epochs, in order."""
    training = spec.training
    cuda = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(spec.work),
        max_steps=steps,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation,
        learning_rate=training.learning_rate,
        adam_beta1=training.adam_betas[0],
        adam_beta2=training.adam_betas[1],
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        lr_scheduler_type=training.scheduler,
        warmup_steps=math.ceil(training.warmup_ratio * steps),
        optim="adamw_torch",
        bf16=training.dtype == "bfloat16",
        fp16=training.dtype == "float16",
        activation_checkpointing=training.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if training.gradient_checkpointing else None,
        seed=training.seed,
        data_seed=training.seed,
        use_cpu=not cuda,
        ddp_backend="gloo" if training.processes > 1 and not cuda else None,
        ddp_find_unused_parameters=False,
        deepspeed=spec.deepspeed,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        dataloader_pin_memory=cuda,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=training.save_steps,
        save_total_limit=None,  # `checkpoints.mark_complete` removes the old ones, never before the new one is complete
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one rank, one GPU: never the Trainer's implicit DataParallel
    return arguments
