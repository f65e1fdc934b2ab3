"""Load a causal language model and its tokenizer, probe that it is causal, and report its window."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.config.models import Dtype
from gateau_dagster.errors import GateauError
from gateau_dagster.models.decoder_config import check_decoder, no_window, override_rope_theta, prompt_tokens, window_of
from gateau_dagster.models.devices import resolve_device
from gateau_dagster.models.probe import ROUNDING, probe_ids, probing
from gateau_dagster.models.weights import (
    DeviceMap,
    moved,
    read_config,
    read_tokenizer,
    read_weights,
    resolve_source,
)

_TOKENS = 8


def sees_what_follows(model: PreTrainedModel) -> bool:
    """Return whether another last token changes the logits of the token before it by more than rounding does.

    It does in CPM-Ant, which reads its input as a whole, in BERT and similar models without `is_decoder`, and in
    decoders that were converted to embed. A probe that fails returns False: the first use reports why. Under ZeRO-3 all
    ranks must call it.
    """
    first = probe_ids(model, _TOKENS)
    ids = torch.stack([first, torch.cat([first[:-1], first[-1:] - 1])])
    try:
        with probing(model):
            one, other = model(input_ids=ids, use_cache=False).logits[:, -2]
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
        return False
    # Tokens that do not see the difference are the same products of the same shapes.
    return bool((one - other).norm() > ROUNDING[one.dtype] / 10 * one.norm())


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model ready to score: in evaluation mode, without gradients, on `device`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int | None  # tokens; ModelConfig.window, else the checkpoint's own; None: the architecture has no limit
    device: torch.device  # the input's device; with device_map the other layers may be elsewhere
    name: str  # as written in the configuration
    opening: str = ""  # text before every scoring prompt (ModelConfig.opening)


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

    With `device_map` 'auto' accelerate spreads the layers over all GPUs and moves data between them; `device` must then
    be 'auto'. `adjust` may change the checkpoint's configuration before the model is built from it.

    Raises GateauError with cause and remedy: missing or incomplete folder, hub unreachable, an architecture that does
    not generate text or is not causal, weights that are missing or not safetensors, no tokenizer, no rotary embedding
    to override, an absent device, out of memory.
    """
    assert device_map is None or device == "auto", "see placement.check_device_map"
    target = resolve_device(device)
    source = resolve_source(config.path, folder)
    model_config = read_config(config, source)
    check_decoder(model_config, config, source)
    window = window_of(model_config, config)
    if config.context == "window" and window is None:
        raise GateauError("models.window", no_window(config))
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
            "models.not_causal",
            f"{config.path} ({type(model).__name__}, model type {model.config.model_type}) lets a token see the "
            "tokens that follow it, so its scores would be wrong: take a causal language model such as Llama, "
            "Qwen or Mistral (for BERT: one with is_decoder: true in its config.json)",
        )
    return LoadedModel(
        model=model, tokenizer=tokenizer, window=window, device=target, name=config.path, opening=config.opening
    )


def _spread_over_gpus(config: ModelConfig, model: PreTrainedModel) -> torch.device:
    """Return the device of the input embeddings; raise GateauError if some layer had to stay outside the GPUs."""
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk", "meta"}:
        raise GateauError(
            "models.too_large",
            f"{config.path} does not fit into the memory of the {torch.cuda.device_count()} GPUs together: use "
            "scoring.dtype bfloat16, or more or larger GPUs",
        )
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.device


def load_tokenizer(config: ModelConfig, *, folder: Path) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a folder (relative to `folder`) or hub name; raise GateauError as `load_model`
    does.
    """
    return read_tokenizer(config, resolve_source(config.path, folder))


def effective_max_length(loaded: LoadedModel, config: ModelConfig, scoring: ScoringConfig) -> int:
    """Return the `prompt_tokens` of a loaded model."""
    return prompt_tokens(loaded.model.config, config, scoring, window=loaded.window)
