"""Choose the levers that make a training's pass fit into a GPU's memory, from arithmetic, and apply them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.training.memory_plan import MemoryPlan, ModelSizes, Pass, Sharding, memory_plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TILE_TOKENS = 32_768
"""Tokens of a tile that keep a GPU busy: with smaller ones the layer takes longer."""
USABLE = 0.9
"""Part of the GPU's memory that a training may plan with: the rest is the CUDA context's and lost to fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Levers:
    """The levers that a training uses.

    offload: each layer's input waits in the host's memory. tile_tokens: tokens that a feed-forward layer computes at a
    time; None: all.
    """

    offload: bool = False
    tile_tokens: int | None = None


def choose_levers(
    training: TrainingConfig,
    sizes: ModelSizes,
    *,
    tokens: int,
    deepspeed: dict[str, Any] | None,
    device_bytes: int | None,
    tileable: bool = True,
) -> Levers:
    """Return the levers: those that are set, and of those that are `auto` the first choice that fits, cheapest first.

    Args:
        training: the settings.
        sizes: of the model; without layers `auto` pulls no lever.
        tokens: of the longest pass.
        deepspeed: the resolved DeepSpeed configuration.
        device_bytes: memory of the GPU; None on a CPU, where `auto` pulls no lever.
        tileable: whether `auto` may tile the feed-forward layers.
    """
    tiles: list[int | None] = [None, TILE_TOKENS]
    if training.tiled_mlp != "auto":
        tiles = [None if training.tiled_mlp == "off" else training.tiled_mlp]
    elif not tileable or device_bytes is None or (training.lora is not None and training.lora.dropout > 0):
        tiles = [None]
    offloads = [False, True]
    if training.offload_activations != "auto":
        offloads = [training.offload_activations == "on"]
    elif device_bytes is None or not training.gradient_checkpointing:
        offloads = [False]
    choices = [Levers(offload=offload, tile_tokens=tile) for offload in offloads for tile in tiles]
    if device_bytes is None or not sizes.layers:
        return choices[0]
    fitting = (
        each
        for each in choices
        if levers_plan(training, sizes, each, tokens=tokens, deepspeed=deepspeed).device_bytes <= USABLE * device_bytes
    )
    return next(fitting, choices[-1])


def levers_plan(
    training: TrainingConfig,
    sizes: ModelSizes,
    levers: Levers,
    *,
    tokens: int,
    deepspeed: dict[str, Any] | None,
    device: str = "cuda",
) -> MemoryPlan:
    """Return the memory of a rank in a pass over `tokens` tokens, which ranks may share, with these levers."""
    sharding = Sharding.of(deepspeed, ranks=training.processes, hidden=sizes.hidden)
    tile = levers.tile_tokens
    run = Pass.of(training, sharding, tokens=tokens, device=device, offloads=levers.offload, tile=tile)
    return memory_plan(sizes, run)


def untiled(model: PreTrainedModel, reason: str) -> GateauError:
    """Return the error for a model whose feed-forward layers cannot be tiled, though the settings ask for it."""
    return GateauError(
        "training.architecture",
        f"training.tiled_mlp: {type(model).__name__} (model type {model.config.model_type}) cannot compute its "
        f"feed-forward layers in tiles: {reason}. Set training.tiled_mlp: auto.",
    )
