"""Predict from a model's class and configuration, without weights, whether its attention weights can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

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
    weights."""
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
