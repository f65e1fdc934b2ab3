"""Choose the levers that make a training's pass fit into a GPU's memory, from arithmetic, and apply them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.memory_plan import MemoryPlan, ModelSizes, Pass, Sharding, memory_plan

if TYPE_CHECKING:
    from torch import nn

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
) -> Levers:
    """Return the levers: those that are set, and of those that are `auto` the first choice that fits, cheapest first.

    Args:
        training: the settings.
        sizes: of the model; without layers `auto` uses no lever.
        tokens: of the longest pass.
        deepspeed: the resolved DeepSpeed configuration.
        device_bytes: memory of the GPU; None on a CPU, where `auto` uses no lever.
    """
    tiles: list[int | None] = [None, TILE_TOKENS]
    if training.tiled_mlp != "auto":
        tiles = [None if training.tiled_mlp == "off" else training.tiled_mlp]
    elif not sizes.tileable or device_bytes is None or (training.lora is not None and training.lora.dropout > 0):
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


_CHECKPOINT = "_gradient_checkpointing_func"  # transformers' attribute of every checkpointed module


def offload_checkpoints(model: nn.Module) -> None:
    """Let the inputs of checkpointed layers wait for the backward pass in the host's memory instead of the GPU's.

    That frees layers x tokens x hidden size numbers on the GPU. Gradient checkpointing must be enabled. Both copies are
    asynchronous, from and to pinned memory, in the order of the GPU's work. transformers has the same switch, which
    fails where there is no GPU.
    """
    for module in model.modules():
        if hasattr(module, _CHECKPOINT):
            setattr(module, _CHECKPOINT, partial(_offloaded, checkpoint=getattr(module, _CHECKPOINT)))


def has_offloaded_checkpoints(model: nn.Module) -> bool:
    """Return whether a layer's checkpoints are offloaded."""
    functions = [getattr(module, _CHECKPOINT, None) for module in model.modules()]
    return any(isinstance(each, partial) and each.func is _offloaded for each in functions)


def _offloaded(layer: Callable[..., Any], *inputs: Any, checkpoint: Callable[..., Any]) -> Any:
    """Run a layer under `checkpoint`, which saves its inputs outside of its own hooks, and so on the CPU."""
    from torch.autograd.graph import save_on_cpu

    with save_on_cpu(pin_memory=any(getattr(each, "is_cuda", False) for each in inputs)):
        return checkpoint(layer, *inputs)
