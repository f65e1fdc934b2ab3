"""Build a small random model of an architecture, to try its code before its weights are read."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig

_MOST = 50_000_000  # parameters: 0.2 GB
_HEAD = 16  # dimensions of a head
# Sizes that no other size depends on.
_SMALL = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}


class NoSmallModelError(Exception):
    """The reason why no small model of an architecture was built."""


def small_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return a random model, float32 on the CPU, with the heads and kinds of layers of `config`, but smaller sizes.

    Raises:
        NoSmallModelError: these sizes do not fit the architecture, or make it no smaller than 50M parameters.
    """
    from transformers import AutoModelForCausalLM

    try:
        small = _smaller(config)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            with torch.device("meta"):
                planned = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
            if sum(each.numel() for each in planned.parameters()) > _MOST:
                raise NoSmallModelError(f"a small model of it has more than {_MOST:,} parameters")
            model = AutoModelForCausalLM.from_config(small, dtype=torch.float32)
            with torch.no_grad():
                model(input_ids=torch.arange(8)[None])
    except NoSmallModelError:
        raise
    except Exception as error:  # each architecture's own code raises types of its own at sizes it does not expect
        first = str(error).partition("\n")[0]
        raise NoSmallModelError(f"a small model of it cannot be built ({type(error).__name__}: {first})") from error
    return model


def _smaller(config: PreTrainedConfig) -> PreTrainedConfig:
    small = copy.deepcopy(config)
    text: Any = small.get_text_config(decoder=True)
    layers, kinds = text.num_hidden_layers, getattr(text, "layer_types", None) or [None]
    kept = min(layers, max(2, 1 + max(kinds.index(kind) for kind in {*kinds})))
    for name, value in {**vars(text)}.items():
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, value[:kept])
    text.num_hidden_layers = kept
    for name, size in _SMALL.items():
        if isinstance(getattr(text, name, None), int):
            setattr(text, name, min(size, getattr(text, name)))
    if isinstance(heads := getattr(text, "num_attention_heads", None), int):
        text.hidden_size = heads * _HEAD
        if isinstance(getattr(text, "head_dim", None), int):
            text.head_dim = _HEAD
    for part in (small, text):
        if isinstance(getattr(part, "pad_token_id", None), int):
            part.pad_token_id = 0
    return small
