"""Read the settings of a running training from the objects that do the work, not from the configuration."""

# Why not from the configuration: a value passes through the Trainer's arguments, accelerate and DeepSpeed, each with
# other defaults. What one of them ignores or replaces is visible only in the objects that do the work. The price:
# attributes are read that these libraries do not document, so a new release may need a change here.

from typing import Any

import torch
from torch.nn.attention import current_flash_attention_impl
from transformers import Trainer
from transformers.modeling_layers import GradientCheckpointingLayer

from gateau_dagster.training.batch_plan import BatchPlan
from gateau_dagster.training.dataset import MixRows, trained_tokens
from gateau_dagster.training.memory_levers import has_offloaded_checkpoints, tile_tokens

Settings = dict[str, Any]
SETTINGS_NAME = "settings.json"  # file in the training's work folder
_SHOWN_RATES = 4  # number of rates shown, evenly spaced after the warm-up


def used_settings(trainer: Trainer, optimizer: Any, scheduler: Any, *, plan: BatchPlan, rows: MixRows) -> Settings:
    """Return one JSON object from the objects that the Trainer passes to its callbacks when the training begins.

    `optimizer`: class, betas, eps, weight decay, largest gradient norm. `schedule`: kind, peak rate, warm-up steps,
    steps, and the rate at some steps (counted from 1). `batch`: rows of a pass, passes, ranks that read different
    rows, rows of a step. `data`: content of the plan and its documents; `documents` and `trained_tokens` over all
    epochs. `model`: types, attention, loss, trained share. `deepspeed`: ZeRO stage, what is offloaded to the CPU, or
    null. `ranks`: processes, device, how they are connected.
    """
    return {
        "optimizer": _optimizer(trainer, optimizer),
        "schedule": _schedule(scheduler, trainer.args.max_steps),
        "batch": _batch(trainer),
        "data": _data(plan, rows),
        "model": _model(trainer.model, optimizer),
        "deepspeed": _deepspeed(trainer),
        "ranks": {
            "processes": trainer.args.world_size,
            "sequence_parallel": trainer.get_sp_size(),
            "device": trainer.args.device.type,
            "joined": trainer.accelerator.distributed_type.value,
        },
    }


def _innermost(wrapped: Any, name: str) -> Any:
    # accelerate's and DeepSpeed's wrappers keep the object as attribute `name`.
    while (inner := getattr(wrapped, name, None)) is not None:
        wrapped = inner
    return wrapped


def _optimizer(trainer: Trainer, optimizer: Any) -> Settings:
    inner = _innermost(optimizer, "optimizer")
    engine = _engine(trainer)
    first = inner.param_groups[0]
    return {
        "class": f"{type(inner).__module__}.{type(inner).__name__}",
        "betas": list(first["betas"]),
        "eps": first["eps"],
        "weight_decay": max(group["weight_decay"] for group in inner.param_groups),
        "max_grad_norm": trainer.args.max_grad_norm if engine is None else engine.gradient_clipping(),
    }


def _schedule(scheduler: Any, steps: int) -> Settings:
    inner = _innermost(scheduler, "scheduler")
    [factor] = {id(each): each for each in inner.lr_lambdas}.values()
    given = getattr(factor, "keywords", {})  # transformers builds its schedules as partial functions
    peak = max(inner.base_lrs)
    warm = given.get("num_warmup_steps", 0)
    shown = sorted({1, warm + 1, *(warm + 1 + (steps - 1 - warm) * part // _SHOWN_RATES for part in range(1, 5))})
    name = getattr(getattr(factor, "func", factor), "__name__", type(factor).__name__)
    return {
        "kind": name.removeprefix("_get_").removesuffix("_lr_lambda").replace("_schedule", ""),
        "peak_learning_rate": peak,
        "warmup_steps": warm,
        "steps": given.get("num_training_steps", steps),
        "lowest_ratio": given.get("min_lr_rate"),
        "learning_rates": {str(step): peak * factor(step - 1) for step in shown if step <= steps},
    }


def _batch(trainer: Trainer) -> Settings:
    engine = _engine(trainer)
    arguments = trainer.args
    if engine is not None:
        rows, passes = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    else:
        rows, passes = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    reading = arguments.world_size // trainer.get_sp_size()
    return {"rows": rows, "passes": passes, "reading_ranks": reading, "rows_per_step": rows * passes * reading}


def _data(plan: BatchPlan, rows: MixRows) -> Settings:
    documents = [document for row in plan.rows for document in row]
    skip, trained = rows._skip, trained_tokens(rows._mix)
    return {
        "documents": len(documents),
        "trained_tokens": sum(trained[document.row] for document in documents),
        "epochs": max(document.epoch for document in documents) + 1,
        "longest_document": max(rows.lengths),
        "longest_row": max(sum(rows.lengths[document.row] for document in row) for row in plan.rows),
        "rows_per_step": plan.rows_per_step,
        "concatenated": plan.concatenated,
        "steps": plan.steps,
        "positions_below": rows.farthest,
        "skip": None if skip is None else skip.model_dump(mode="json"),
    }


def _model(model: Any, optimizer: Any) -> Settings:
    parameters = list(model.parameters())
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        "class": type(body).__name__,
        "weights": _types(parameters),
        "master_weights": _types(_masters(optimizer)),
        "attention": body.config._attn_implementation,
        "flash_attention": current_flash_attention_impl(),
        "rope": getattr(body.config.get_text_config(decoder=True), "rope_parameters", None),
        "chunked_loss": "forward" in vars(body),
        "gradient_checkpointing": any(getattr(module, "gradient_checkpointing", False) for module in model.modules()),
        "checkpointed_layers": sum(layer.gradient_checkpointing for layer in layers),
        "offloaded_activations": has_offloaded_checkpoints(body),
        "mlp_tile_tokens": tile_tokens(body),
        "liger_kernels": any(_is_liger(module) for module in model.modules()),
        "trained_parameters": count_parameters([each for each in parameters if each.requires_grad]),
        "parameters": count_parameters(parameters),
    }


def _is_liger(module: torch.nn.Module) -> bool:
    return getattr(module.forward, "__module__", "").startswith("liger_kernel")


def _masters(optimizer: Any) -> list[torch.Tensor]:
    # Under DeepSpeed the optimiser updates its own flat parts, else the model's parameters.
    zero = getattr(optimizer, "optimizer", optimizer)
    for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if getattr(zero, name, None):
            return list(getattr(zero, name))
    return [value for group in _innermost(optimizer, "optimizer").param_groups for value in group["params"]]


def _types(tensors: list[torch.Tensor]) -> list[str]:
    return sorted({str(each.dtype).removeprefix("torch.") for each in tensors})


def count_parameters(parameters: list[Any]) -> int:
    """Return the number of parameters of the whole model: under ZeRO-3 a rank holds a part, and `ds_numel` is the
    whole.
    """
    return sum(getattr(each, "ds_numel", each.numel()) for each in parameters)


def _deepspeed(trainer: Trainer) -> Settings | None:
    engine = _engine(trainer)
    if engine is None:
        return None
    offloads = {"optimizer": engine.zero_offload_optimizer(), "parameters": engine.zero_offload_param()}
    return {
        "zero_stage": engine.zero_optimization_stage(),
        "on_the_cpu": [what for what, where in offloads.items() if where is not None and str(where.device) != "none"],
        "bfloat16": engine.bfloat16_enabled(),
        "float16": engine.fp16_enabled(),
    }


def _engine(trainer: Trainer) -> Any:
    return trainer.deepspeed if trainer.is_deepspeed_enabled else None
