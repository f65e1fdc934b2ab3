"""The order in which sequences are trained on: all epochs laid out as one list, so that resuming is a plain skip.

A sampler that reshuffles at every epoch resumes wrongly inside a later epoch (design, section 7); a list does not.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

PADDING = -1
"""A row without any token to learn: fills up the last step, adds nothing to its loss."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`rows` of the mix (or PADDING) for every step: `steps` times `global_batch` of them."""

    rows: list[int]
    steps: int
    global_batch: int

    def step_rows(self, step: int) -> list[int]:
        """The rows of the mix that optimiser step `step` (counted from 1) learns from."""
        chunk = self.rows[(step - 1) * self.global_batch : step * self.global_batch]
        return [row for row in chunk if row != PADDING]


def _place(*key: object) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in key).encode("utf-8", errors="surrogatepass")).digest()


def mix_order(keys: Sequence[tuple[str, str]], seed: int) -> list[int]:
    """Indices of `keys` (origin, sample_id) shuffled by hash: two of them keep their order whatever else is there."""
    return sorted(range(len(keys)), key=lambda index: _place("mix", seed, *keys[index]))


def epoch_order(count: int, *, epoch: int, seed: int) -> list[int]:
    """Rows 0..count-1 in the order of `epoch`: the mix's own order at first, reshuffled in every later one."""
    if epoch == 0:
        return list(range(count))
    return sorted(range(count), key=lambda row: _place("epoch", seed, epoch, row))


def training_layout(count: int, *, epochs: float, max_steps: int | None, global_batch: int, seed: int) -> Layout:
    """Every row of every step. The last step is filled with PADDING, so that all ranks make the same number of passes.

    Args:
        count: sequences in the mix.
        epochs: passes over the mix, possibly a fraction; ignored with `max_steps`.
        max_steps: optimiser steps.
        global_batch: sequences per optimiser step, over all ranks and accumulation steps.
        seed: of the epochs' order.
    """
    assert count > 0
    wanted = max_steps * global_batch if max_steps is not None else max(1, round(count * epochs))
    rows: list[int] = []
    for epoch in range(math.ceil(wanted / count)):
        rows += epoch_order(count, epoch=epoch, seed=seed)
    steps = math.ceil(wanted / global_batch)
    rows = rows[:wanted]
    return Layout(rows=rows + [PADDING] * (steps * global_batch - wanted), steps=steps, global_batch=global_batch)
