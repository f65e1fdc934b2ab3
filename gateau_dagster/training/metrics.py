"""Report the progress of a training run, and log one line per step, without duplicates or gaps after a resume."""

# Why a file beside the Trainer's `log_history`: that one reaches the disk with a checkpoint only. The process of the
# run shows progress from this file, on whichever machine rank 0 is. A resumed run cuts it to its checkpoint first, so
# that no step is in it twice.
#
# Each line carries its digest: a damaged line is one missing step, and not a wrong curve.

import json
import logging
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.shapes import known_shape
from gateau_dagster.readable import plural
from gateau_dagster.storage.files import replace_text
from gateau_dagster.storage.stamp import sealed, unsealed
from gateau_dagster.training.dataset import MixRows

Metrics = dict[str, Any]
Report = Callable[[Metrics], None]
_log = logging.getLogger(__name__)


def read_log(path: Path) -> list[Metrics]:
    """Return the logged steps, except those with damaged lines; see `rewind_log`."""
    return _read(path)[0]


def rewind_log(path: Path, step: int, say: Callable[[str], None] = _log.warning) -> None:
    """Remove the steps after `step`, which a resumed training run logs again. `say` receives a report of damage.

    Raises:
        GateauError: the log cannot be written.
    """
    steps, damaged = _read(path)
    if damaged:
        say(
            f"{path} has {plural(damaged, 'damaged line')}: the training curve lacks these steps. The model is not "
            "affected."
        )
    kept = [metrics for metrics in steps if metrics["step"] <= step]
    replace_text(path, "".join(_line(metrics) for metrics in kept))


def _read(path: Path) -> tuple[list[Metrics], int]:
    """Return the steps, and the number of damaged lines.

    An incomplete last line is ignored, because no checkpoint contains its step.
    """
    if not path.exists():
        return [], 0
    *lines, torn = path.read_bytes().split(b"\n")
    read = [_step(line) for line in lines]
    steps = [metrics for metrics in [*read, _step(torn)] if metrics is not None]
    return steps, read.count(None)


def _step(line: bytes) -> Metrics | None:
    try:
        metrics = unsealed(line)
    except ValueError:
        return None
    return metrics if isinstance(metrics.get("step"), int) else None


def _line(metrics: Metrics) -> str:
    return json.dumps(sealed(metrics)) + "\n"


def peak_memory_bytes() -> int:
    """Return the peak memory in bytes: of a used GPU since the last step, else of the process since its start."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class StepLog:
    """Turn the Trainer's figures into one record per step.

    The fields are `step, total, loss, learning_rate, grad_norm, tokens, seconds, tokens_per_second, seconds_left, mfu,
    peak_memory_bytes, host_memory_bytes`. Tokens and rates cover all ranks. `tokens_per_second` is the rate of the last
    step; `seconds_left` uses the mean time per step since this start. `mfu` is the model's FLOP/s, without
    recomputation and padding, divided by the FLOP/s of the GPUs in a matrix product; null on a CPU. Memory is that of
    this rank: the peak of the GPU in this step, and the resident memory of the process.

    Args:
        path: the log file.
        rows: the rows of the training run.
        first_step: the last step that was logged before this start; 0 if there is none.
        total: the number of steps of the training run.
        report: called with each record.
        work: FLOPs of a step over all ranks, if known.
        peak: FLOP/s of all GPUs in a matrix product, if measured.
    """

    def __init__(
        self,
        path: Path,
        *,
        rows: MixRows,
        first_step: int,
        total: int,
        report: Report,
        work: Callable[[int], float | None] = lambda _: None,
        peak: float | None = None,
    ) -> None:
        self._path, self._rows, self._total, self._report = path, rows, total, report
        self._work, self._peak = work, peak
        self._first_step = first_step
        self._started = self._last = time.monotonic()
        self._tokens = rows.tokens_until(first_step)

    def record(self, step: int, *, loss: float, learning_rate: float, grad_norm: float | None) -> None:
        """Append the step to the log and report it."""
        now = time.monotonic()
        tokens, seconds = self._rows.tokens_until(step), max(now - self._last, 1e-9)
        flops = None if self._peak is None else self._work(step)
        metrics: Metrics = {
            "step": step,
            "total": self._total,
            "loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": (tokens - self._tokens) / seconds,
            "seconds_left": (now - self._started) / (step - self._first_step) * (self._total - step),
            "mfu": None if flops is None or self._peak is None else flops / seconds / self._peak,
            "peak_memory_bytes": peak_memory_bytes(),
            "host_memory_bytes": psutil.Process().memory_info().rss,
        }
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        self._last, self._tokens = now, tokens
        with self._path.open("a", encoding="utf-8") as log:
            log.write(_line(metrics))
        self._report(metrics)


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """The FLOPs of a step without the optimiser: `counted`, and those that gradient checkpointing adds to it."""

    counted: float
    recomputed: float


def step_flops(
    shape: ModelShape, lengths: Sequence[int], *, trained_tokens: int, adapters: int = 0, rank: int | None = None
) -> StepFlops:
    """Return the FLOPs of a training step over documents of these `lengths` in tokens.

    Each document attends only to itself. The output layer computes trained tokens only.

    `counted` is one forward pass, and a backward pass of twice its cost: 6 FLOPs per weight and token, and three times
    the FLOPs of the attention. With adapters of this `rank`, and `adapters` weights in all, the frozen matrices have no
    gradients. They then cost 4 FLOPs per weight and token, and the adapters 6.

    `recomputed` is a second forward pass of each layer without its last product, which no gradient needs.
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


class StepWork:
    """The FLOPs of each step over all ranks, without recomputation and padding; None for an unknown architecture."""

    def __init__(self, model: nn.Module, rows: MixRows, *, rank: int | None) -> None:
        self._shape = known_shape(model.config)  # pyright: ignore[reportArgumentType]
        self._rows, self._rank = rows, rank
        self._adapters = 0
        if rank is not None:
            learned = (each for each in model.parameters() if each.requires_grad)
            self._adapters = sum(getattr(each, "ds_numel", each.numel()) for each in learned)

    def __call__(self, step: int) -> float | None:
        """Return the FLOPs of optimiser step `step`, counted from 1."""
        if self._shape is None:
            return None
        lengths, trained = self._rows.work_of_step(step)
        return step_flops(
            self._shape, lengths, trained_tokens=trained, adapters=self._adapters, rank=self._rank
        ).counted
