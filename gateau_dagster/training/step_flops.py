"""Count the arithmetic of an optimiser step, to compare its speed with that of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gateau_dagster.models.flops import ModelShape

if TYPE_CHECKING:
    from torch import nn

    from gateau_dagster.training.dataset import MixRows


@dataclass(frozen=True, kw_only=True)
class StepFlops:
    """The FLOPs of a step without the optimiser's own: `counted`, and what gradient checkpointing adds to it."""

    counted: float
    recomputed: float


def step_flops(
    shape: ModelShape, lengths: Sequence[int], *, trained_tokens: int, adapters: int = 0, rank: int | None = None
) -> StepFlops:
    """Return the FLOPs of documents side by side, each attending to itself, with the output layer over trained tokens.

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


class StepWork:
    """The FLOPs of each step over all ranks, without recomputation and padding; None for an unknown architecture."""

    def __init__(self, model: nn.Module, rows: MixRows, *, rank: int | None) -> None:
        self._shape = ModelShape.known(model.config)  # pyright: ignore[reportArgumentType]
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
