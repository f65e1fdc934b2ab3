"""Loads a causal language model and its tokenizer, and says what it can be shown."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError
from gateau_dagster.models.causality import sees_what_follows
from gateau_dagster.models.devices import resolve_device
from gateau_dagster.models.weights import (
    DeviceMap,
    moved,
    read_config,
    read_tokenizer,
    read_weights,
    resolve_source,
)


def override_rope_theta(config: PreTrainedConfig, theta: float, *, name: str) -> None:
    """Set the base in a configuration from which the model is yet to be built.

    Models with one base per kind of layer (Gemma 3) get it for their full-attention layers only: the sliding ones
    never look past their window. Raises GateauError for a model without a rotary embedding.
    """
    text_config = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        raise GateauError(f"{name}: rope_theta is set, but {config.model_type} has no rotary embedding: remove the key")
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    chosen = [nested["full_attention"]] if "full_attention" in nested else list(nested.values()) or [parameters]
    for entry in chosen:
        entry["rope_theta"] = theta
    if hasattr(text_config, "rope_theta"):
        text_config.rope_theta = theta  # remote code written for transformers 4 reads it here


_GENERATIVE = ("CausalLM", "LMHead", "ConditionalGeneration")


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model ready to score: in evaluation mode, without gradients, on `device`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int | None  # tokens; ModelConfig.window, else the checkpoint's own; None: the architecture has no limit
    device: torch.device  # where the input goes; with device_map the other layers may be elsewhere
    name: str  # as the configuration spells it
    opening: str = ""  # text before every scoring prompt: ModelConfig.opening


def load_model(
    config: ModelConfig,
    *,
    dtype: Dtype,
    device: str,
    folder: Path,
    device_map: DeviceMap = None,
    adjust: Callable[[PreTrainedConfig], None] | None = None,
) -> LoadedModel:
    """Load model and tokenizer from a folder (relative to `folder`) or from the Hugging Face hub.

    With `device_map` 'auto' accelerate spreads the layers over all GPUs and moves what passes between them; `device`
    then has to be 'auto'. `adjust` may change the checkpoint's configuration before the model is built from it.

    Raises GateauError naming cause and cure: missing or incomplete folder, hub out of reach, an architecture that
    does not generate text or is not causal, weights that are missing or not safetensors, no tokenizer, no rotary
    embedding to override, a device that is absent, out of memory.
    """
    assert device_map is None or device == "auto", "see placement.check_device_map"
    target = resolve_device(device)
    source = resolve_source(config.path, folder)
    model_config = _decoder_config(config, source)
    window = config.window or getattr(model_config.get_text_config(decoder=True), "max_position_embeddings", None)
    if config.context == "window" and window is None:
        raise GateauError(f"{config.path}: context is 'window', but the model names no window: give `window` in tokens")
    if config.rope_theta is not None:
        override_rope_theta(model_config, config.rope_theta, name=config.path)
    if adjust is not None:
        adjust(model_config)
    tokenizer = read_tokenizer(config, source)
    model = read_weights(AutoModelForCausalLM, config, source, model_config, dtype=dtype, device_map=device_map)
    target = _spread_over_gpus(config, model) if device_map is not None else moved(config, model, target)
    model.eval().requires_grad_(False)
    if sees_what_follows(model):
        raise GateauError(
            f"{config.path} ({type(model).__name__}, model type {model.config.model_type}) lets a token see what "
            "follows it, so that a response's tokens would be scored knowing themselves: take a causal language model "
            "such as Llama, Qwen or Mistral (of BERT and its like, one with is_decoder: true in its config.json)"
        )
    return LoadedModel(
        model=model, tokenizer=tokenizer, window=window, device=target, name=config.path, opening=config.opening
    )


def _decoder_config(config: ModelConfig, source: str) -> PreTrainedConfig:
    model_config = read_config(config, source)
    architectures = model_config.architectures or []
    generative = not architectures or any(word in name for name in architectures for word in _GENERATIVE)
    if model_config.is_encoder_decoder or not (generative or config.trust_remote_code):
        raise GateauError(
            f"{source} is a {', '.join(architectures) or model_config.model_type}, not a causal language model: "
            "a response can only be scored by a decoder such as Llama, Qwen or Mistral"
        )
    return model_config


def _spread_over_gpus(config: ModelConfig, model: PreTrainedModel) -> torch.device:
    """The device of the input embeddings; raises GateauError when some layer had to stay outside the GPUs."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk", "meta"}:
        raise GateauError(
            f"{config.path} does not fit into the memory of the {torch.cuda.device_count()} GPUs together: use "
            "scoring.dtype bfloat16, or more or larger GPUs"
        )
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.device


def load_tokenizer(config: ModelConfig, *, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer alone, of a folder (relative to `folder`) or hub name; raises GateauError as `load_model`."""
    return read_tokenizer(config, resolve_source(config.path, folder))


def effective_max_length(loaded: LoadedModel, config: ModelConfig, scoring: ScoringConfig) -> int:
    """Tokens of a prompt that this model is shown: scoring.max_length, or less with `context: window`.

    Raises GateauError when the model has learned positions and would be asked for ones that do not exist.
    """
    if config.context == "window":
        if loaded.window is None:
            raise GateauError(f"{config.path}: context is 'window', but the model names no window: give `window`")
        return min(scoring.max_length, loaded.window)
    text_config = loaded.model.config.get_text_config(decoder=True)
    positions = getattr(text_config, "max_position_embeddings", None)
    rotary = getattr(text_config, "rope_parameters", None)
    if positions is not None and not rotary and positions < scoring.max_length:
        raise GateauError(
            f"{config.path} has {positions} learned positions and cannot read scoring.max_length = "
            f"{scoring.max_length} tokens: lower scoring.max_length or give the model `context: window`"
        )
    return scoring.max_length
