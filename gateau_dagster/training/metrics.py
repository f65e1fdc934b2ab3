"""What the user sees of a running training, and its log: one line a step, without duplicates or gaps over resumes."""

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gateau_dagster.storage.files import replace_text
from gateau_dagster.training.dataset import MixRows

Metrics = dict[str, Any]
Report = Callable[[Metrics], None]


def read_log(path: Path) -> list[Metrics]:
    """The steps logged so far. A last line that a kill tore apart is left out; its step was saved by no checkpoint."""
    if not path.exists():
        return []
    steps: list[Metrics] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            steps.append(json.loads(line))
        except ValueError:
            break
    return steps


def rewind_log(path: Path, step: int) -> None:
    """Forget the steps after `step`: training goes on from there and will log them again.

    Raises:
        GateauError: the log cannot be written.
    """
    kept = [metrics for metrics in read_log(path) if metrics["step"] <= step]
    replace_text(path, "".join(json.dumps(metrics) + "\n" for metrics in kept))


def peak_memory_bytes() -> int:
    """Of the GPU where one is used, else of the process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class StepLog:
    """Turns the Trainer's figures into one record a step: `step, total, loss, learning_rate, grad_norm, tokens,
    tokens_per_second, seconds_left, peak_memory_bytes` (tokens and rates over all ranks, rates over the last step and
    since this start)."""

    def __init__(self, path: Path, *, rows: MixRows, first_step: int, total: int, report: Report) -> None:
        self._path, self._rows, self._total, self._report = path, rows, total, report
        self._first_step = first_step
        self._started = self._last = time.monotonic()
        self._tokens = rows.tokens_until(first_step)

    def record(self, step: int, *, loss: float, learning_rate: float, grad_norm: float | None) -> None:
        """Append one line and report it."""
        now = time.monotonic()
        tokens = self._rows.tokens_until(step)
        metrics: Metrics = {
            "step": step,
            "total": self._total,
            "loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "tokens": tokens,
            "tokens_per_second": (tokens - self._tokens) / max(now - self._last, 1e-9),
            "seconds_left": (now - self._started) / (step - self._first_step) * (self._total - step),
            "peak_memory_bytes": peak_memory_bytes(),
        }
        self._last, self._tokens = now, tokens
        with self._path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(metrics) + "\n")
        self._report(metrics)
