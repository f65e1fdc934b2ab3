"""Training on a GPU, for benchmarks/gpu.py: optimiser steps on one packed row, made by the code that trains.

Each case has a model of its own, randomly initialised, and the trainer that `training.train` makes for it: forward pass
with attention within documents, loss in chunks over the trained tokens, backward pass with gradient checkpointing,
clipping, AdamW; bfloat16 by autocast over float32 weights, as `training` does on one process without DeepSpeed. Only
loading and saving are left out.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common_measure import PeakMemory, memory_held, say, synchronise
from common_models import build_model
from gpu_parts import Parts, first_line
from gpu_training_cases import STEPS, WARM_UP, Case, TrainingSettings, row_of
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from gateau_dagster.errors import GateauError
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.training.batch_plan import BatchPlan
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.readiness import check_device, check_packages
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import make_trainer, training_arguments
from gateau_dagster.training.trainer import ResponseTrainer
from gateau_dagster.training.used_settings import used_settings


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """Of one optimiser step, without the optimiser's own: `counted`, and what gradient checkpointing adds to it."""

    counted: float
    recomputed: float


def step_flops(
    shape: ModelShape, lengths: list[int], *, trained_tokens: int, adapters: int = 0, rank: int | None = None
) -> StepFlops:
    """Of documents side by side, each attending causally to itself, with the output layer over the trained tokens.

    `counted` is one forward pass, and twice as much backward: 6 a weight and token, where the output layer's weights
    meet trained tokens only, and three times the attention's. With adapters of this `rank`, and `adapters` weights in
    all, the frozen matrices have no gradients: 4 a weight and token of them, 6 of the adapters.

    `recomputed` is each layer's forward pass once more, without its last product: no gradient needs that.
    """
    tokens = float(sum(lengths))
    matrices = shape.token_flops * tokens
    attention = float(shape.attention_flops(np.array(lengths, dtype=np.float64)).sum())
    low_rank = 2.0 * adapters * tokens
    last = 2.0 * shape.layers * shape.hidden * (rank or shape.intermediate) * tokens
    passes = 3 if rank is None else 2
    return StepFlops(
        counted=passes * (matrices + shape.head_flops(trained_tokens)) + 3 * (attention + low_rank),
        recomputed=matrices + attention + low_rank - last,
    )


class Clock(TrainerCallback):
    """Seconds of each step after the warm-up, from the end of the one before; and the settings really used."""

    def __init__(self, rows: MixRows, plan: BatchPlan, *, enough_seconds: float) -> None:
        self.seconds: list[float] = []
        self.used: dict[str, Any] = {}
        self.trainer: ResponseTrainer | None = None
        self._rows, self._plan, self._enough = rows, plan, enough_seconds
        self._last = 0.0

    def on_train_begin(self, args: TrainingArguments, _: TrainerState, __: TrainerControl, **kwargs: Any) -> None:
        """What the objects that do the work say of themselves."""
        del args
        assert self.trainer is not None
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        self.used = used_settings(self.trainer, optimizer, scheduler, plan=self._plan, rows=self._rows)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The time of a step; once `enough_seconds` have gone there is no further one."""
        synchronise(args.device)
        now = time.perf_counter()
        if state.global_step > WARM_UP:
            self.seconds.append(now - self._last)
            control.should_training_stop |= sum(self.seconds) >= self._enough
        self._last = now


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case about to run."""

    trainer: ResponseTrainer
    clock: Clock
    flops: StepFlops
    result: dict[str, Any]  # what is known before the first step


def prepare(case: Case, settings: TrainingSettings, folder: Path) -> Prepared:
    """The model, on the device that the Trainer takes, and its trainer, which writes nothing into `folder`."""
    training = case.training
    spec = TrainingSpec(
        mix=folder, base_model="random", output=folder, work=folder, training=training, fingerprint="benchmark"
    )
    arguments = training_arguments(spec, steps=STEPS)
    arguments.save_strategy = SaveStrategy.NO
    started = time.perf_counter()
    loaded = build_model(case.model.shape, name=case.model.name, device=str(arguments.device))
    model = loaded.model.train().requires_grad_(True)
    model.config.use_cache = False
    shape, parameters = ModelShape.of(model.config), sum(each.numel() for each in model.parameters())
    rows, plan, trained_tokens = row_of(case, settings)
    trainer = make_trainer(spec, model, loaded.tokenizer, arguments, rows)
    clock = Clock(rows, plan, enough_seconds=settings.enough_seconds)
    clock.trainer = trainer
    trainer.add_callback(clock)
    learned = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)  # pyright: ignore
    low_rank = {} if training.lora is None else {"adapters": learned, "rank": training.lora.rank}
    return Prepared(
        trainer=trainer,
        clock=clock,
        flops=step_flops(shape, rows.lengths, trained_tokens=trained_tokens, **low_rank),
        result={
            "shape": asdict(case.model.shape),
            "tokens": case.tokens,
            "documents": len(rows.lengths),
            "trained_tokens": trained_tokens,
            "parameters": parameters,
            "trained_parameters": learned,
            "device": str(arguments.device),
            "prepare_seconds": time.perf_counter() - started,
        },
    )


def measure(case: Case, settings: TrainingSettings) -> dict[str, Any]:
    """The times of a case's steps and their peak memory; or why there are none: `left_out` or `out_of_memory`."""
    checks = {
        "not installed": lambda: check_packages(case.training),
        "no GPU": lambda: check_device(case.training, cuda=torch.cuda.is_available()),
    }
    for lack, check in checks.items():
        try:
            check()
        except GateauError as error:
            return {"left_out": lack, "reason": str(error)}
    with TemporaryDirectory() as folder:
        try:
            return _measured(prepare(case, settings, Path(folder)))
        except torch.OutOfMemoryError as error:
            return {"out_of_memory": first_line(error)}


def _measured(prepared: Prepared) -> dict[str, Any]:
    trainer, clock = prepared.trainer, prepared.clock
    device = trainer.args.device
    held, memory = memory_held(device), PeakMemory(device)
    trainer.train()
    if trainer.args.use_liger_kernel and not clock.used["model"]["liger_kernels"]:
        raise RuntimeError("Liger has no kernels for this model")
    best, tokens = min(clock.seconds), prepared.result["tokens"]
    result = prepared.result | {
        "seconds": clock.seconds,
        "best_seconds": best,
        "flops": prepared.flops.counted,
        "recomputed_flops": prepared.flops.recomputed,
        "held_bytes": held,  # by the model
        "total_peak_bytes": memory.read(),
        "losses": [each["loss"] for each in trainer.state.log_history if "loss" in each],
        "used": clock.used,
    }
    if device.type == "cuda":  # with what the allocator keeps at hand
        result["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    say(f"  {best:.3f} s a step, {tokens / best:.0f} tokens/s, {result['total_peak_bytes'] / 2**30:.1f} GiB")
    return result


def run_training(parts: Parts, settings: TrainingSettings) -> None:
    """All cases, one part each."""
    for case in settings.cases:
        parts.run(case.name, case.at_most_seconds, lambda case=case: measure(case, settings))
