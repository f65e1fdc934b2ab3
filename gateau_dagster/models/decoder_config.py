"""Check and override what a causal language model's config.json decides, before its weights are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError
from gateau_dagster.models.positions import learned_positions

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

    from gateau_dagster.config import ModelConfig, ScoringConfig


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
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    chosen = [nested["full_attention"]] if "full_attention" in nested else list(nested.values()) or [parameters]
    for entry in chosen:
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
    """Return how many tokens of a prompt a model is shown: scoring.max_length, or fewer with `context: window`.

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
