"""Compute how far a model and its layers can read.

Learned positions have an end; rotary ones have a length that they are made for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

Rope = dict[str, Any]
"""The parameters of a rotary embedding, in the form of transformers' `rope_parameters`."""
BY_LENGTH = {"dynamic", "longrope"}
"""Scalings whose frequencies depend on the text's length, and were chosen for the present base."""


def learned_positions(config: PreTrainedConfig) -> int | None:
    """Return how many positions a model has learned; None if it computes them, and so has no limit."""
    text_config = config.get_text_config(decoder=True)
    if getattr(text_config, "rope_parameters", None):
        return None
    return getattr(text_config, "max_position_embeddings", None)


def rotary_positions(config: PreTrainedConfig, theta: float | None = None) -> int | None:
    """Return how many positions a model's rotary embedding is made for, in tokens.

    That is `max_position_embeddings`, or the length that a scaling of the embedding reaches if that is more. A base
    raised from b to `theta` reaches (theta/b)^((d-2)/d) times as far, where d is the number of rotated dimensions of a
    head (NTK-aware scaling, the rule of training.positions).

    Args:
        config: of the model, with the base that it was trained with.
        theta: `rope_theta` of the configuration, which replaces the base.

    Returns:
        None for a model without a rotary embedding, and for one that names no positions. None also if all layers have a
            sliding window, because such a model never looks further back than that.
    """
    text_config: Any = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    declared = getattr(text_config, "max_position_embeddings", None)
    spans = spans_of(text_config)
    if not parameters or not declared or (spans and all(spans)):
        return None
    return min(_reach(rope, declared, theta, text_config) for rope in full_attention_ropes(parameters))


def _reach(rope: Rope, declared: int, theta: float | None, text_config: Any) -> int:
    found, base = scaled_positions(rope, declared), rope.get("rope_theta")
    if theta is None or not base or theta <= base:
        return found
    rotated = rotated_dimensions(rope, text_config)
    return found if rotated <= 2 else round(found * (theta / base) ** ((rotated - 2) / rotated))


def scaled_positions(rope: Rope, declared: int) -> int:
    """Return the positions that a rotary embedding's scaling reaches, at least `declared`.

    Some configurations declare the window before the scaling, others the product. `original_max_position_embeddings`,
    which transformers keeps for yarn, longrope and llama3, decides; without it the factor counts.
    """
    if rope.get("rope_type", "default") == "default":
        return declared
    original = rope.get("original_max_position_embeddings") or declared
    return max(declared, round(original * (rope.get("factor") or 1.0)))


def full_attention_ropes(parameters: Rope) -> list[Rope]:
    """Return the rotary embeddings of the layers that see the whole context.

    Args:
        parameters: one embedding, or one per kind of layer (Gemma 3).
    """
    nested = {kind: rope for kind, rope in parameters.items() if isinstance(rope, dict)}
    return [nested["full_attention"]] if "full_attention" in nested else list(nested.values()) or [parameters]


def rotated_dimensions(rope: Rope, text_config: Any) -> int:
    """Return how many dimensions of a head a rotary embedding rotates; 0 if the configuration does not say."""
    layer = text_config
    if getattr(
        text_config, "is_heterogeneous", False
    ):  # Gemma 4: each layer has its own; `rope` belongs to full attention
        kinds = getattr(text_config, "layer_types", None) or ["full_attention"]
        layer = text_config.per_layer_config[kinds.index("full_attention") if "full_attention" in kinds else 0]
    hidden, heads = first_of(layer, "hidden_size") or 0, first_of(layer, "num_attention_heads") or 1
    head = first_of(layer, "head_dim") or hidden // heads
    return int(head * rope.get("partial_rotary_factor", 1.0))


def spans_of(text: Any) -> tuple[int | None, ...]:
    """Return how many keys each layer's queries see (the length of a chunk for chunked attention); () for all in
    all.
    """
    count, kinds = getattr(text, "num_hidden_layers", 0), getattr(text, "layer_types", None)
    own = getattr(text, "is_heterogeneous", False)  # then each layer has a configuration, and may have a window
    windows = [
        first_of(layer, "sliding_window", "attention_chunk_size")
        for layer in (text.per_layer_config[:] if own else [text] * count)
    ]
    if not kinds:
        # Without a list, every layer has the window; a flag may switch it off.
        return tuple(windows) if any(windows) and getattr(text, "use_sliding_window", True) else ()
    local = {"sliding_attention", "chunked_attention"}
    found = [
        window if kind in local else None if kind == "full_attention" else 0
        for kind, window in zip(kinds, windows, strict=False)
    ]
    return tuple(found) if any(span is not None for span in found) else ()


def first_of(text: Any, *names: str) -> Any:
    """Return the first of these settings that the configuration has with a true value."""
    return next((value for name in names if (value := getattr(text, name, None))), None)
