"""Training on a GPU, for benchmarks/gpu.py: optimiser steps on one packed row, made by the code that trains.

Each case has a separate model, randomly initialised, and the trainer that `training.train` makes for it: forward pass
with attention within documents, loss in chunks over the trained tokens, backward pass with gradient checkpointing,
clipping, AdamW; bfloat16 by autocast over float32 weights, as `training` does on one process without DeepSpeed. Only
loading and saving are left out.

What of a model is trained is what one GPU of 139 GiB holds beside a long row. All weights: float32 weights, gradients
and two moments, 16 bytes per parameter: 16 GiB for 1B, 120 GiB for 8B. So the 8B shape is trained by LoRA (rank 16, all
linear layers; 30 GiB of frozen float32 weights), and all its weights are tried once. DeepSpeed's ZeRO has nothing to
share out on one GPU: in its bfloat16 mode too, all weights come to 16 bytes per parameter, unless they wait on the CPU.
"""

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from accelerate.state import AcceleratorState
from common import PeakMemory, first_line, memory_held, reserved_bytes, say, synchronise
from common_models import EIGHT_BILLION, FOUR_BILLION, GROUPED, TINY, TINY_QWEN3, Shape, build_model
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.trainer_utils import SaveStrategy

from gateau_dagster.config.training import LoraConfig, TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.training.batch_plan import BatchPlan, MixDocument
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config, join_by_gloo
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.memory_plan import TILE_TOKENS, MemoryPlan, ModelSizes, Pass, Sharding, memory_plan
from gateau_dagster.training.metrics import StepFlops, step_flops
from gateau_dagster.training.model import with_adapters
from gateau_dagster.training.readiness import check_device, check_packages
from gateau_dagster.training.train import make_trainer, training_arguments
from gateau_dagster.training.used_settings import used_settings

PREFIX = "training "  # of the names of the parts
WARM_UP, TIMED = 1, 3  # steps; the first one also makes the optimiser's state
ONE_BILLION = Shape(layers=22, hidden=2048, heads=32, kv_heads=4, intermediate=5632, vocabulary=32_000)
_SEED = 7


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model, and whether low-rank adapters or all its weights are trained."""

    name: str
    shape: Shape
    lora: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of tokens: a single document, or short ones side by side."""

    model: Trained
    tokens: int
    short: bool = False
    liger: bool = False
    at_most_seconds: float = 0.0  # what it may take on a Hopper GPU, generously
    document: int | None = None  # tokens of each document; None: `short` decides
    deepspeed: str | None = None
    levers: Literal["auto", "on", "off"] = "off"
    tile: int = TILE_TOKENS  # with levers: on
    plain: bool = False  # transformers' own Trainer, loss and attention
    warm_up: int = WARM_UP
    timed: int = TIMED

    @property
    def name(self) -> str:
        """The name of the part."""
        weights = "LoRA" if self.model.lora else "all weights"
        documents = "short documents" if self.short else "one document"
        if self.document is not None and self.document < self.tokens:
            documents = f"documents of {self.document}"
        more = [f", {self.deepspeed}"] if self.deepspeed else []
        more += [", transformers alone"] if self.plain else [f", levers {self.levers}"] if self.deepspeed else []
        more += [", Liger"] if self.liger else []
        return f"{PREFIX}{self.model.name}, {weights}, {self.tokens} tokens, {documents}{''.join(more)}"

    @property
    def steps(self) -> int:
        """The optimiser steps in all."""
        return self.warm_up + self.timed

    @property
    def training(self) -> TrainingConfig:
        """The section `training` that asks for it."""
        return TrainingConfig(
            batching="packed",
            max_length=self.tokens,
            max_steps=self.steps,
            gradient_accumulation=1,
            gradient_checkpointing=True,
            offload_activations=self.levers,
            tiled_mlp=self.tile if self.levers == "on" else self.levers,
            deepspeed=self.deepspeed,
            lora=LoraConfig() if self.model.lora else None,
            liger=self.liger,
            chunked_loss=not self.plain,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Sizes of everything, in tokens unless a comment tells otherwise."""

    small: Trained = Trained(name="1B", shape=ONE_BILLION)
    large: Trained = Trained(name="8B", shape=GROUPED, lora=True)
    lengths: tuple[int, ...] = (8192, 32_768, 65_536)
    at_most_seconds: tuple[float, ...] = (20, 35, 65)  # of a case of each length
    response_tokens: int = 512  # the end of a single document, which is trained; of a short one it is the second half
    short_lengths: tuple[int, int] = (128, 1024)  # the shortest and the longest of the short documents
    enough_seconds: float = 8.0  # of timed steps of a case

    @property
    def cases(self) -> Iterator[Case]:
        """Yield both models at all lengths; a row with Liger's kernels, for comparison; then all weights of `large`."""
        for model in (self.small, self.large):
            for tokens, most in zip(self.lengths, self.at_most_seconds, strict=True):
                for short in (False, True):
                    yield Case(model=model, tokens=tokens, short=short, at_most_seconds=most)
        tokens, most = self.lengths[1], self.at_most_seconds[1]
        yield Case(model=self.small, tokens=tokens, short=True, liger=True, at_most_seconds=most)
        whole = Trained(name=self.large.name, shape=self.large.shape)
        yield Case(model=whole, tokens=self.lengths[0], at_most_seconds=most)


FULL_TRAINING = TrainingSettings()
QUICK_TRAINING = TrainingSettings(
    small=Trained(name="1B", shape=TINY),
    large=Trained(name="8B", shape=TINY, lora=True),
    lengths=(64, 96, 128),
    at_most_seconds=(0, 0, 0),
    response_tokens=10,
    short_lengths=(8, 24),
    enough_seconds=0.1,
)


@dataclass(frozen=True, kw_only=True)
class LongSettings(TrainingSettings):
    """Rows of 32k to 384k tokens under DeepSpeed, so that the frozen weights and the residual stream are bfloat16.

    The levers are off, on (checkpoints of activations in the host's memory, feed-forward layers in tiles), or auto.
    One step each: the second one, above 128k tokens the first, which takes longer: it also pins the host's memory.
    Documents of 16k tokens: the memory of a row does not depend on its documents, but the time of one document of 384k
    tokens would be ten times as long.
    """

    four: Trained = Trained(name="Qwen3 4B", shape=FOUR_BILLION, lora=True)
    eight: Trained = Trained(name="Qwen3 8B", shape=EIGHT_BILLION, lora=True)
    unit: int = 32_768
    tile: int = TILE_TOKENS

    @property
    def cases(self) -> Iterator[Case]:
        """Yield the cases, the most valuable ones first."""
        whole = Trained(name=self.four.name, shape=self.four.shape)
        rows: tuple[tuple[Trained, int, str, str, float], ...] = (
            (self.four, 1, "zero2", "auto", 20),
            (self.four, 1, "zero2", "plain", 18),
            (self.four, 2, "zero2", "plain", 15),
            (self.four, 2, "zero2", "off", 30),
            (self.four, 2, "zero2", "on", 35),
            (self.four, 4, "zero2", "on", 60),
            (self.four, 12, "zero2", "on", 80),
            (whole, 2, "zero3", "on", 60),
            (self.eight, 4, "zero2", "on", 65),
            (self.four, 8, "zero2", "on", 60),
            (self.four, 4, "zero2", "plain", 20),
            (self.eight, 8, "zero2", "on", 80),
        )
        for model, units, deepspeed, levers, most in rows:
            plain = levers == "plain"
            yield Case(
                model=model,
                tokens=units * self.unit,
                document=units * self.unit if plain else self.unit // 2,
                deepspeed=deepspeed,
                levers="off" if plain else levers,  # pyright: ignore[reportArgumentType]
                tile=self.tile,
                plain=plain,
                warm_up=int(units <= 4),
                timed=1,
                at_most_seconds=most,
            )


LONG_TRAINING = LongSettings()
QUICK_LONG_TRAINING = LongSettings(
    four=Trained(name="Qwen3 4B", shape=TINY_QWEN3, lora=True),
    eight=Trained(name="Qwen3 8B", shape=TINY_QWEN3, lora=True),
    unit=32,
    tile=24,
    response_tokens=10,
)


def document_lengths(case: Case, settings: TrainingSettings) -> list[int]:
    """Return the tokens of each document; together they fill the row."""
    if case.document is not None:
        return [case.document] * (case.tokens // case.document)
    if not case.short:
        return [case.tokens]
    rng, (shortest, longest) = random.Random(_SEED), settings.short_lengths
    lengths: list[int] = []
    while (left := case.tokens - sum(lengths)) > 0:
        drawn = rng.randint(shortest, longest)
        lengths.append(left if left < drawn + shortest else drawn)
    return lengths


def row_of(case: Case, settings: TrainingSettings) -> tuple[MixRows, BatchPlan, int]:
    """Return the row, once for each step, its plan, and its trained tokens."""
    lengths = document_lengths(case, settings)
    trained = [n // 2 if case.short else settings.response_tokens for n in lengths]
    rng = np.random.default_rng(_SEED)
    ids = [rng.integers(case.model.shape.vocabulary, size=n).tolist() for n in lengths]
    labels = [[IGNORED] * (len(each) - n) + each[len(each) - n :] for each, n in zip(ids, trained, strict=True)]
    count = len(lengths)
    names = [f"d{index:05d}" for index in range(count)]
    mix = pl.DataFrame({"position": range(count), "sample_id": names, "input_ids": ids, "labels": labels})
    rows = tuple(tuple(MixDocument(row=index, epoch=step) for index in range(count)) for step in range(case.steps))
    plan = BatchPlan(rows=rows, steps=case.steps, accumulation=1, processes=1, rows_per_batch=1)
    return MixRows(mix, plan), plan, sum(trained)


class Clock(TrainerCallback):
    """Seconds of each step after the warm-up, from the end of the one before; and the settings really used."""

    def __init__(self, rows: MixRows, plan: BatchPlan, *, warm_up: int, enough_seconds: float) -> None:
        self.seconds: list[float] = []
        self.used: dict[str, Any] = {}
        self.trainer: Trainer | None = None
        self._rows, self._plan, self._warm_up, self._enough = rows, plan, warm_up, enough_seconds
        self._last = 0.0

    def on_train_begin(self, args: TrainingArguments, _: TrainerState, __: TrainerControl, **kwargs: Any) -> None:
        """Record the settings of the objects that do the work."""
        del args
        assert self.trainer is not None
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        self.used = used_settings(self.trainer, optimizer, scheduler, plan=self._plan, rows=self._rows)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        """Start the clock of the first step."""
        if state.global_step == 0:
            synchronise(args.device)
            self._last = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record the time of a step; stop once `enough_seconds` have passed."""
        synchronise(args.device)
        now = time.perf_counter()
        if state.global_step > self._warm_up:
            self.seconds.append(now - self._last)
            control.should_training_stop |= sum(self.seconds) >= self._enough
        self._last = now


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case about to run."""

    trainer: Trainer
    clock: Clock
    flops: StepFlops
    result: dict[str, Any]  # what is known before the first step


def planned_memory(
    spec: TrainingSpec, sizes: ModelSizes, tokens: int, trained: int, *, device: str, **levers: Any
) -> MemoryPlan:
    """Return the memory that `gateau plan` expects of a pass over `tokens` tokens: `planned_bytes` at its peak."""
    sharding = Sharding.of(spec.deepspeed, ranks=spec.training.processes, hidden=sizes.hidden)
    return memory_plan(sizes, Pass.of(spec.training, sharding, tokens=tokens, trained=trained, device=device, **levers))


def prepare(case: Case, settings: TrainingSettings, folder: Path) -> Prepared:
    """Return the model, on the device that the Trainer takes, and its trainer, which writes nothing into `folder`."""
    training = case.training
    spec = TrainingSpec(
        mix=folder,
        base_model="random",
        output=folder,
        work=folder,
        training=training,
        fingerprint="benchmark",
        deepspeed=agreed_deepspeed_config(training, folder=folder),
    )
    arguments = training_arguments(spec, steps=case.steps)
    if spec.deepspeed is not None and arguments.use_cpu:
        join_by_gloo()
    arguments.save_strategy = SaveStrategy.NO
    started = time.perf_counter()
    loaded = build_model(case.model.shape, name=case.model.name, device=str(arguments.device))
    model = loaded.model.train().requires_grad_(True)
    model.config.use_cache = False
    shape, parameters = model_shape(model.config), sum(each.numel() for each in model.parameters())
    rows, plan, trained_tokens = row_of(case, settings)
    levers = {"offloads": True, "tile": case.tile} if case.levers == "on" else {}
    planned = planned_memory(
        spec, ModelSizes.of(model), case.tokens, trained_tokens, device=arguments.device.type, **levers
    )
    if case.plain:
        trainer = plain_trainer(case, model, arguments, rows)
    else:
        trainer = make_trainer(spec, model, loaded.tokenizer, arguments, rows)
    clock = Clock(rows, plan, warm_up=case.warm_up, enough_seconds=settings.enough_seconds)
    clock.trainer = trainer
    trainer.add_callback(clock)
    if spec.deepspeed is not None:  # DeepSpeed's engine would do it, within the measured peak
        trainer.model.to(torch.bfloat16)  # pyright: ignore
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
            "planned_bytes": planned.device_bytes,
            "planned": asdict(planned),
            "steps_before": case.warm_up,
            "prepare_seconds": time.perf_counter() - started,
        },
    )


def plain_trainer(case: Case, model: Any, arguments: TrainingArguments, rows: MixRows) -> Trainer:
    """Return transformers' Trainer with its own loss and attention, on the same single document."""
    if case.training.lora is not None:
        model = with_adapters(model, case.training.lora, seed=case.training.seed)
    documents = [document for index in range(len(rows)) for document in rows[index]]
    data: Any = [{"input_ids": each.input_ids, "labels": each.labels} for each in documents]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def one_rank() -> Iterator[None]:
    """Let DeepSpeed run in this process, as its only rank; afterwards training runs without it work here again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    own |= {} if torch.cuda.is_available() else {"DS_ACCELERATOR": "cpu"}
    before = dict(os.environ)
    os.environ.update(own)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        unset_hf_deepspeed_config()
        AcceleratorState._reset_state(reset_partial_state=True)


def measure_case(case: Case, settings: TrainingSettings) -> dict[str, Any]:
    """Return the times of a case's steps and their peak memory, or why there are none: `left_out`, `out_of_memory`."""
    lack = "not installed"
    try:
        check_packages(case.training)
        lack = "no GPU"
        check_device(case.training, cuda=torch.cuda.is_available())
    except GateauError as error:
        return {"left_out": lack, "reason": str(error)}
    prepared = None
    with TemporaryDirectory() as folder:
        try:
            prepared = prepare(case, settings, Path(folder))
            return _measured(prepared)
        except torch.OutOfMemoryError as error:
            return {"out_of_memory": first_line(error)}
        finally:
            if prepared is not None and case.deepspeed is not None:
                release(prepared.trainer)


def release(trainer: Trainer) -> None:
    """Free the tensors of a training run under DeepSpeed, which keeps its engines until the process ends."""
    trainer.accelerator.free_memory()
    zero = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    for held in (vars(zero) if zero is not None else {}, getattr(zero, "state", {})):
        _empty(held, depth=4)
    for parameter in trainer.model.parameters():  # pyright: ignore[reportOptionalMemberAccess]
        _empty(parameter, depth=0)


def _empty(held: Any, *, depth: int) -> None:
    if isinstance(held, torch.Tensor):
        held.grad = None
        held.data = torch.empty(0, dtype=held.dtype, device=held.device)
    elif depth and isinstance(held, dict | list | tuple):
        for each in held.values() if isinstance(held, dict) else held:
            _empty(each, depth=depth - 1)


def host_bytes() -> int | None:
    """Return the most pinned memory of the host that torch held at a time; None where it does not count it."""
    counted = getattr(torch.cuda, "host_memory_stats", None)
    stats = counted() if counted is not None and torch.cuda.is_available() else {}
    return next((stats[name] for name in ("allocated_bytes.peak", "allocated_bytes.all.peak") if name in stats), None)


def free_host_memory() -> None:
    """Return the pinned memory that torch keeps for reuse to the system, and forget its peak."""
    if torch.cuda.is_available():
        for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
            if hasattr(torch._C, name):
                getattr(torch._C, name)()
                break
        if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
            torch.cuda.reset_peak_host_memory_stats()


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
        "host_bytes": host_bytes(),
        "losses": [each["loss"] for each in trainer.state.log_history if "loss" in each],
        "used": clock.used,
    }
    say(f"  {best:.3f} s a step, {tokens / best:.0f} tokens/s, {result['total_peak_bytes'] / 2**30:.1f} GiB")
    return result | reserved_bytes(device)
