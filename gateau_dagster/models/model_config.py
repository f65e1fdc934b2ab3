"""Read, check and override what a model's config.json decides, before its weights are read.

Learned positions have an end; rotary ones have a length that they are made for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gateau_dagster.errors import GateauError

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

    from gateau_dagster.config import ModelConfig, ScoringConfig


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


ATTENTION_CURE = (
    "Choose by what reads no attention (selection.preset robust, far_gain, hmg), or take an architecture such as "
    "Llama, Qwen or Mistral as models.long; docs/architectures.md lists those that show it."
)
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention", "attention")


def unseen_by_class(kind: type, config: PreTrainedConfig) -> str | None:
    """Return why the attention weights of a model of this class cannot be read; None if no reason is known."""
    if not getattr(kind, "_supports_attention_backend", False):
        return "its code does not use the interface"
    if not attention_layers_of(config):
        return "it has no attention layers"
    return None


def attention_layers_of(config: PreTrainedConfig) -> int:
    """Return how many of the decoder's layers compute softmax attention; others, such as linear ones, have no
    weights.
    """
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return getattr(text, "num_hidden_layers", 0)
    return sum(kind in _ATTENTION_LAYERS for kind in kinds)


def class_of(config: PreTrainedConfig) -> type | None:
    """Return the class that transformers loads for text generation; None if its own code has none. Imports torch."""
    from transformers import AutoModelForCausalLM

    mapping: Any = AutoModelForCausalLM._model_mapping
    return mapping.get(type(config), None)


_GENERATIVE = ("CausalLM", "LMHead", "ConditionalGeneration")


def check_decoder(model_config: PreTrainedConfig, config: ModelConfig, source: str) -> None:
    """Raise GateauError for an architecture that does not generate text; remote code may name its classes freely."""
    architectures = model_config.architectures or []
    generative = not architectures or any(word in name for name in architectures for word in _GENERATIVE)
    if model_config.is_encoder_decoder or not (generative or config.trust_remote_code):
        raise GateauError(
            "models.not_causal",
            f"{source} is a {', '.join(architectures) or model_config.model_type}, not a causal language model: "
            "a response can only be scored by a decoder such as Llama, Qwen or Mistral",
        )


def override_rope_theta(config: PreTrainedConfig, theta: float, *, name: str) -> None:
    """Set the base in a configuration before the model is built from it.

    In models with one base per kind of layer (Gemma 3) only the full-attention layers get it: the sliding ones never
    look past their window. Raises GateauError for a model without a rotary embedding.
    """
    text_config = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        raise GateauError(
            "models.no_rotary",
            f"{name}: rope_theta is set, but {config.model_type} has no rotary embedding: remove the key",
        )
    for entry in full_attention_ropes(parameters):
        entry["rope_theta"] = theta
    if hasattr(text_config, "rope_theta"):
        text_config.rope_theta = theta  # remote code written for transformers 4 reads it here


def window_of(model_config: PreTrainedConfig, config: ModelConfig) -> int | None:
    """Return the window in tokens: the configured one, else the checkpoint's; None if the architecture has none."""
    return config.window or getattr(model_config.get_text_config(decoder=True), "max_position_embeddings", None)


def no_window(config: ModelConfig) -> str:
    """Return the error message for `context: window` without a known window."""
    return f"{config.path}: context is 'window', but the model names no window: give `window` in tokens"


def prompt_tokens(
    model_config: PreTrainedConfig, config: ModelConfig, scoring: ScoringConfig, *, window: int | None
) -> int:
    """Return the most tokens of a prompt that a model is shown: scoring.max_length, or fewer with `context: window`.

    Raises GateauError if no window is known, or learned positions end before the prompt does.
    """
    length, what = scoring.max_length, f"scoring.max_length = {scoring.max_length}"
    if config.context == "window":
        if window is None:
            raise GateauError("models.window", no_window(config))
        length, what = min(length, window), f"a window of {min(length, window)}"
    positions = learned_positions(model_config)
    if positions is not None and positions < length:
        less = f"window: {positions}" if config.context == "window" else "`context: window`"
        raise GateauError(
            "models.positions",
            f"{config.path} has {positions} learned positions, fewer than {what} tokens: give the model {less}, "
            "or lower scoring.max_length",
        )
    return length


Label: TypeAlias = str | int

_HEAD = "ForSequenceClassification"


def check_architecture(architectures: Sequence[str], *, name: str) -> None:
    """Raise GateauError unless one of a model's `architectures` has a sequence classification head."""
    if not any(_HEAD in one for one in architectures):
        raise GateauError(
            "models.reward",
            f"{name} is a {', '.join(architectures) or 'model of unknown architecture'}, which does not rate "
            "texts: with task reward, give a model saved as ...ForSequenceClassification with one output",
        )


def label_index(labels: Mapping[Any, str], label: Label | None, *, name: str) -> int:
    """Return the index of the model's output that is the quality: the only one, or the one that `label` names.

    `label` is a name or a number; `labels` is id2label of the configuration. Raises GateauError if the model has
    several outputs and `label` is None, or if `label` does not match exactly one of them.
    """
    by_index = {int(index): str(text) for index, text in labels.items()}
    named = ", ".join(f"{index} ({text})" for index, text in sorted(by_index.items()))
    if label is None:
        if len(by_index) == 1:
            return min(by_index)
        raise GateauError(
            "models.reward",
            f"{name} has {len(by_index)} outputs, {named}, but a reward model has one: name the output for "
            "quality in selection.options.car.label, or use a model with one output",
        )
    found = [index for index, text in by_index.items() if label in {index, text}]
    if len(found) != 1:
        raise GateauError(
            "models.reward", f"{name} has no output {label!r} for selection.options.car.label; it has {named}"
        )
    return found[0]
