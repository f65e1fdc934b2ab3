"""Choose the levers that make a training's pass fit into a GPU's memory, from arithmetic, and apply them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig

TILE_TOKENS = 32_768
"""Tokens of a tile that keep a GPU busy: with smaller ones the layer takes longer."""
_USABLE = 0.9  # part of the GPU's memory: the rest is the CUDA context's and lost to fragmentation


@dataclass(frozen=True, kw_only=True)
class Levers:
    """The levers that a training uses.

    offload: each layer's input waits in the host's memory. tile_tokens: tokens that a feed-forward layer computes at a
    time; None: all.
    """

    offload: bool = False
    tile_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class PassShape:
    """The sizes that decide the memory of one pass on one GPU: those of the model, and the tokens of the pass."""

    layers: int
    hidden: int
    intermediate: int
    attention_width: int  # heads times head size, of queries, keys and values together
    parameters: int
    trained: int
    tokens: int


def choose_levers(
    training: TrainingConfig,
    shape: PassShape,
    *,
    deepspeed: dict[str, Any] | None,
    device_bytes: int | None,
    tileable: bool = True,
) -> Levers:
    """Return the levers: those that are set, and of those that are `auto` the first choice that fits, cheapest first.

    Args:
        training: the settings.
        shape: of a pass.
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
    room = None if device_bytes is None else _USABLE * device_bytes
    fitting = (
        each for each in choices if room is None or pass_bytes(training, shape, each, deepspeed=deepspeed) <= room
    )
    return next(fitting, choices[-1])


def pass_bytes(
    training: TrainingConfig, shape: PassShape, levers: Levers, *, deepspeed: dict[str, Any] | None
) -> float:
    """Return about how many bytes of a GPU a training holds at its peak: weights, optimiser, checkpoints, one layer."""
    # Autocast keeps the residual stream in float32; under DeepSpeed the model itself has the training's type.
    half = training.dtype != "float32"
    residual = 2 if half and deepspeed is not None else 4
    inner = 2 if half else 4
    stream = shape.tokens * shape.hidden * residual
    attention = shape.tokens * shape.attention_width * inner
    together = shape.tokens if levers.tile_tokens is None else min(shape.tokens, levers.tile_tokens)
    feed_forward = 6 * together * shape.intermediate * inner  # gate, up, their product, and the gradients of these
    if training.gradient_checkpointing:
        kept = stream * (1 if levers.offload else shape.layers)
        layer = 6 * stream + 3 * attention + feed_forward
    else:
        kept = shape.layers * (6 * stream + 3 * attention + (feed_forward / 2 if levers.tile_tokens is None else 0))
        layer = feed_forward
    return state_bytes(training, shape, deepspeed=deepspeed) + kept + layer


def state_bytes(training: TrainingConfig, shape: PassShape, *, deepspeed: dict[str, Any] | None) -> float:
    """Return the bytes of weights, gradients and AdamW's state on one GPU."""
    if deepspeed is None:
        copies = 2 * shape.trained if training.dtype != "float32" else 0  # autocast's, until the pass ends
        return 4 * shape.parameters + 12 * shape.trained + copies
    zero: dict[str, Any] = deepspeed.get("zero_optimization", {})
    stage, ranks = zero.get("stage", 0), training.processes
    size = 4 if training.dtype == "float32" else 2
    weights = size * shape.parameters / (ranks if stage == 3 else 1)
    gradients = size * shape.trained / (ranks if stage >= 2 else 1)
    optimizer = 12 * shape.trained / (ranks if stage >= 1 else 1)
    if _on_the_cpu(zero, "offload_optimizer"):
        gradients, optimizer = (gradients if stage < 2 else 0), 0
    return (0 if _on_the_cpu(zero, "offload_param") else weights) + gradients + optimizer


def _on_the_cpu(zero: dict[str, Any], what: str) -> bool:
    return (zero.get(what) or {}).get("device", "none") != "none"


def pass_shape(model_config: PreTrainedConfig, *, parameters: int, trained: int, tokens: int) -> PassShape:
    """Return the shape of a pass over `tokens` tokens; sizes that the configuration lacks count as 0."""
    config: Any = model_config.get_text_config(decoder=True)
    hidden, heads = (getattr(config, name, None) or 0 for name in ("hidden_size", "num_attention_heads"))
    size = getattr(config, "head_dim", None) or hidden // max(1, heads)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    intermediate = getattr(config, "intermediate_size", None)
    return PassShape(
        layers=getattr(config, "num_hidden_layers", 0),
        hidden=hidden,
        intermediate=intermediate if isinstance(intermediate, int) else 4 * hidden,
        attention_width=(heads + 2 * kv_heads) * size,
        parameters=parameters,
        trained=trained,
        tokens=tokens,
    )


def untiled(model: PreTrainedModel, reason: str) -> GateauError:
    """Return the error for a model whose feed-forward layers cannot be tiled, though the settings ask for it."""
    return GateauError(
        "training.architecture",
        f"training.tiled_mlp: {type(model).__name__} (model type {model.config.model_type}) cannot compute its "
        f"feed-forward layers in tiles: {reason}. Set training.tiled_mlp: auto.",
    )
