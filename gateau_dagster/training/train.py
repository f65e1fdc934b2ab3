"""Train a model from a specification to its output folder, and resume from the last complete checkpoint.

Training uses the Hugging Face Trainer, with DeepSpeed if the specification configures it. Every rank calls `train`.

Precision: master weights are float32. With one process or data parallelism without DeepSpeed, `bfloat16` and `float16`
mean autocast. Under DeepSpeed the model has this dtype, and the optimiser holds the float32 master weights. `float16`
needs a GPU; `bfloat16` also works on a CPU.
"""

# What it does, in this order, because each step needs the ones before it:
# 1. Check what can be checked without a model: a run that cannot work ends within seconds.
# 2. Plan all batches. The plan depends on mix and settings only, so no rank has to send it to another.
# 3. Make the Trainer's arguments, which start the process group, then let rank 0 clean up the work folder.
# 4. Load the base model, adapt it to the rows, and choose the memory levers by the longest pass.
# 5. Let the Trainer make its steps; callbacks log them, and mark complete checkpoints.
# 6. Write the output folder under another name, rename it, and only then remove the checkpoints.
#
# What it costs: AdamW in mixed precision holds about 16 bytes per parameter (weights, gradient, two moments), to which
# the activations of the longest pass are added. A checkpoint holds weights and moments. `gateau plan` shows the
# peak before anything runs (training/memory_plan.py).
#
# When another way is better:
# - `deepspeed: zero1` to `zero3` divide these bytes among the ranks; the offloads move them to the host, and are
#   slower.
# - `lora` trains few weights: nearly all of gradient and moments go away, at the price of another result.
# - `sequence_parallel` divides a row among ranks. It is worth its exchanges only where one row does not fit into a
#   GPU.
# - A loop without the Trainer would be shorter on one GPU. It would have to repeat what DeepSpeed needs under ZeRO-3:
#   sharded loading, gathered saving and resuming. docs/architecture.md has the comparison.

import logging
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.devices import matrix_product_speed, use_flash_attention_3
from gateau_dagster.storage.parquet import DamagedFileError, read_local
from gateau_dagster.tables import TRAINING_MIX, WEIGHTED_MIX, schema
from gateau_dagster.training import checkpoints
from gateau_dagster.training.batch_plan import BatchPlan, plan_batches, write_plan
from gateau_dagster.training.dataset import MixRows, PadRight, SideBySide
from gateau_dagster.training.deepspeed_config import join_by_gloo
from gateau_dagster.training.launch import TrainingSpec, is_finished
from gateau_dagster.training.memory_levers import offload_checkpoints, tile_feed_forward
from gateau_dagster.training.memory_plan import Levers, ModelSizes, choose_levers
from gateau_dagster.training.metrics import Report, StepLog, StepWork, rewind_log
from gateau_dagster.training.model import PLAN_NAME, load_base, with_adapters, write_output
from gateau_dagster.training.readiness import (
    check_device,
    check_packages,
    check_ranks,
    check_sharding,
    fit_to_rows,
    tileable,
)
from gateau_dagster.training.sequence_parallel import HeadExchange, PartOfRow, parallelism
from gateau_dagster.training.trainer import ResponseTrainer, TrainingCallback, barrier

_log = logging.getLogger(__name__)
# Norms, rotary embedding and feed-forward layers. Liger's losses would replace our loss, which supports weights.
_LIGER = {"cross_entropy": False, "fused_linear_cross_entropy": False}
# Each step reaches the log unchanged; the Trainer prints nothing else.
_SAYS_LITTLE: dict[str, Any] = {
    "logging_steps": 1,
    "logging_nan_inf_filter": False,
    "disable_tqdm": True,
    "log_level": "error",
    "log_level_replica": "error",
}


def train(spec: TrainingSpec, report: Report, *, cpu: bool = False, say: Callable[[str], None] = _log.warning) -> None:
    """Train, or resume training; do nothing if the output folder already holds the result of this specification.

    Args:
        spec: the specification; its `training.processes` must be the number of ranks.
        report: called on rank 0 after each step with the metrics of `StepLog`.
        cpu: train on the CPU even if there is a GPU.
        say: receives reports of damage.

    Raises:
        GateauError: the mix, the base model or the settings are unusable, the loss is not finite, or a save failed.
    """
    if is_finished(spec):
        if os.environ.get("RANK", "0") == "0":
            checkpoints.discard_all(spec.work)  # left by a kill between the last write and the clean-up
        return
    check_ranks(spec.training, ranks=int(os.environ.get("WORLD_SIZE", "1")))
    check_packages(spec.training)
    check_device(spec.training, cuda=torch.cuda.is_available() and not cpu)
    disable_progress_bar()
    mix = read_mix(spec.mix, weighted=spec.training.weighs_in_mix)
    plan = plan_of(spec, mix)
    long_prefix = spec.training.row_tokens // 4 if spec.training.loss == "exact" else None
    rows = MixRows(mix, plan, skip=spec.training.skip, seed=spec.training.seed, long_prefix=long_prefix)
    # Create the arguments first: they start the process group, and ZeRO-3 must be known before the model is loaded.
    arguments = training_arguments(spec, steps=plan.steps, cpu=cpu)
    if spec.deepspeed is not None and arguments.use_cpu:
        join_by_gloo()
    if spec.training.attention == "fa3":
        use_flash_attention_3(arguments.device, key="training.attention")
    resumed = _prepare(spec, plan, rank=arguments.process_index, say=say)
    if long_prefix is not None and not rows.has_long_prefixes and arguments.process_index == 0:
        say(f"training.loss: exact changes nothing: no token has {long_prefix} tokens before it in its sequence")
    model, tokenizer = load_base(spec, longest=rows.farthest)
    trainer = make_trainer(spec, model, tokenizer, arguments, rows)
    first_step = 0 if resumed is None else checkpoints.step_of(resumed)
    lora, device = spec.training.lora, arguments.device
    speed = matrix_product_speed(str(device), spec.training.dtype) if device.type == "cuda" else None
    log = StepLog(
        spec.log,
        rows=rows,
        first_step=first_step,
        total=plan.steps,
        report=report,
        work=StepWork(trainer.model, rows, rank=None if lora is None else lora.rank),  # pyright: ignore[reportArgumentType]
        peak=None if speed is None else speed * arguments.world_size,  # of all ranks together
    )
    trainer.add_callback(TrainingCallback(spec, trainer, plan, rows, log))
    trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    write_output(trainer, tokenizer, spec, plan)
    if arguments.process_index == 0:
        checkpoints.discard_all(spec.work)


def plan_of(spec: TrainingSpec, mix: pl.DataFrame) -> BatchPlan:
    """Return the plan of all batches, which depends on mix and settings only: equal on every rank and attempt."""
    training = spec.training
    # Sort the lengths only: sorting the whole mix would copy it.
    lengths = mix.select("position", pl.col("input_ids").list.len()).sort("position")["input_ids"]
    return plan_batches(
        lengths.to_list(),
        batching=training.batching,
        epochs=training.epochs,
        max_steps=training.max_steps,
        rows_per_batch=training.batch_size,
        accumulation=training.passes_per_step,
        processes=training.data_processes,
        pack_length=training.row_tokens,
        balanced=training.balanced,
        seed=training.seed,
    )


def make_trainer(
    spec: TrainingSpec,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    arguments: TrainingArguments,
    rows: MixRows,
) -> ResponseTrainer:
    """Return the trainer of `rows` for the specification; change the model's loss and attention, and add adapters.

    Raises:
        GateauError: the model cannot be trained this way.
    """
    training = spec.training
    weighted = training.loss != "token"
    fit_to_rows(model, training)
    pad = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
    collator: Any = (
        SideBySide(weighted=weighted, joined=training.batching == "concatenated")
        if training.side_by_side
        else PadRight(pad_token_id=pad, weighted=weighted)
    )
    device, cuda = arguments.device, arguments.device.type == "cuda"
    sizes = replace(ModelSizes.of(model), tileable=tileable(model, training, cuda=cuda))
    if (size := training.sequence_parallel) > 1:
        collator = PartOfRow(whole=collator, part=arguments.process_index % size, size=size)
    total = torch.cuda.get_device_properties(device).total_memory if cuda else None
    levers = choose_levers(training, sizes, tokens=rows.longest_pass, deepspeed=spec.deepspeed, device_bytes=total)
    trained = model if training.lora is None else with_adapters(model, training.lora, seed=training.seed)
    trainer = ResponseTrainer(model=trained, args=arguments, train_dataset=rows, data_collator=collator)
    trainer.by_weight = training.divides_by_weights
    trainer.change_model = partial(_apply, spec, model, levers, longest=rows.longest_pass // size)
    if size > 1:
        trainer.add_callback(HeadExchange(model))
    elif not trainer.model_accepts_loss_kwargs:
        raise GateauError(
            "training.architecture",
            f"{type(model).__name__} cannot average its loss over a global batch: its forward accepts no loss "
            "arguments. Train another architecture.",
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _apply(spec: TrainingSpec, model: PreTrainedModel, levers: Levers, *, longest: int) -> None:
    if levers.offload:
        offload_checkpoints(model)
    if levers.tile_tokens is not None:
        spread = spec.deepspeed is not None and spec.deepspeed["zero_optimization"]["stage"] == 3
        tile_feed_forward(model, tokens=levers.tile_tokens, longest=longest if spread else None)


def read_mix(path: Path, *, weighted: bool = False) -> pl.DataFrame:
    """Read the training mix (`tables.TRAINING_MIX`, or with `weighted` `tables.WEIGHTED_MIX`).

    Raises:
        GateauError: the file cannot be read, lacks a column, or is empty.
    """
    try:
        mix, _ = read_local(path, list(schema(WEIGHTED_MIX if weighted else TRAINING_MIX)))
    except (OSError, DamagedFileError, KeyError) as error:
        raise GateauError(
            "training.file_damaged", f"the training mix {path} cannot be read ({error}). Materialise it again."
        ) from error
    if mix.is_empty():
        raise GateauError(
            "training.empty_mix", f"the training mix {path} is empty. Select more samples or add short_chat."
        )
    return mix


def _prepare(spec: TrainingSpec, plan: BatchPlan, *, rank: int, say: Callable[[str], None]) -> Path | None:
    # Rank 0 cleans up before any rank looks for the checkpoint, so that all ranks find the same.
    if rank == 0:
        resumed = checkpoints.prepare_work(spec.work, spec.resume_key, say)
        write_plan(plan, spec.work / PLAN_NAME)
        rewind_log(spec.log, 0 if resumed is None else checkpoints.step_of(resumed), say)
    barrier()
    return checkpoints.last_checkpoint(spec.work)


def _parallelism(spec: TrainingSpec) -> Any:
    size = spec.training.sequence_parallel
    if size == 1:
        return None
    check_sharding(spec.deepspeed)
    return parallelism(size=size, processes=spec.training.processes)


def training_arguments(spec: TrainingSpec, *, steps: int, cpu: bool = False) -> TrainingArguments:
    """Return the Trainer's arguments for `steps` optimiser steps over the planned epochs, in order.

    cpu: see `train`.
    """
    training, cuda = spec.training, torch.cuda.is_available() and not cpu
    every = {"every_n_layers": training.every_n_layers} if training.every_n_layers > 1 else {}
    arguments = TrainingArguments(
        output_dir=str(spec.work),
        max_steps=steps,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.passes_per_step,
        optim="adamw_torch",
        learning_rate=training.learning_rate,
        adam_beta1=training.adam_betas[0],
        adam_beta2=training.adam_betas[1],
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        warmup_steps=math.ceil(training.warmup_ratio * steps),
        **_schedule(training),
        bf16=training.dtype == "bfloat16",
        fp16=training.dtype == "float16",
        activation_checkpointing=training.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False, **every} if training.gradient_checkpointing else None,
        seed=training.seed,
        data_seed=training.seed,
        use_cpu=not cuda,
        ddp_backend="gloo" if training.processes > 1 and not cuda else None,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=cuda,
        deepspeed=spec.deepspeed,
        parallelism_config=_parallelism(spec),
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        save_strategy="steps",
        save_steps=training.save_steps,
        save_total_limit=None,  # `checkpoints.mark_complete` removes old ones, never before the new one is complete
        report_to=list(training.report_to),
        use_liger_kernel=training.liger,
        liger_kernel_config=_LIGER if training.liger else None,
        **_SAYS_LITTLE,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one rank, one GPU: never the Trainer's implicit DataParallel
    return arguments


def _schedule(training: TrainingConfig) -> dict[str, Any]:
    lowest = training.min_learning_rate_ratio
    if training.scheduler == "cosine" and lowest > 0:
        return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": lowest}}
    if training.scheduler == "constant" and training.warmup_ratio > 0:
        return {"lr_scheduler_type": "constant_with_warmup"}  # transformers' `constant` has no warm-up
    return {"lr_scheduler_type": training.scheduler}
