"""a_t of Eq. 4: how much the response attends to each context token, without ever holding an attention matrix.

An attention function registered with transformers does what its sdpa function does and, for the query rows of the
response only, adds softmax(q_y Kᵀ) in blocks of rows. Memory is linear in the prompt's length.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.attention_rows import attention_rows, row_blocks
from gateau_dagster.scoring.forward import Float64, response_states
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.prompt import Prompt

_NAME = "gateau_response_rows"
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")
# Arguments that would change the weights in a way `attention_rows` does not know.
_UNKNOWN = ("position_bias", "cache")


@dataclass(kw_only=True)
class _Collector:
    """Attention from the response rows to the context columns, layer by layer."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    layers: list[Tensor] = field(default_factory=list)  # one entry a call: float64 [C], mean over heads and rows


# transformers calls the attention function without a place for our state.
_active: ContextVar[_Collector | None] = ContextVar("_active", default=None)


@dataclass(frozen=True, kw_only=True)
class ContextAttention:
    """What one pass over the full prompt gives."""

    attention: Float64  # a_t of every context token [C]
    states: Tensor  # hidden states for forward.token_nll [|y|, hidden]: PPL of the full prompt at no further pass


@torch.no_grad()
def context_attention(loaded: LoadedModel, prompt: Prompt) -> ContextAttention:
    """Attention weight from the response tokens to every context token: mean over layers, heads, response tokens.

    Each layer's softmax is computed in float32 (float64 for a float64 model), as the model computes it: causal,
    with its sliding window, soft cap or sinks. Raises GateauError for a model that does not run its attention
    through transformers' attention interface, where the weights cannot be seen.
    """
    require_attention_interface(loaded)
    with _collecting(loaded, prompt) as collector:
        states = response_states(loaded, [prompt])
    expected = _attention_layers(loaded)
    if len(collector.layers) != expected:
        raise _unsupported(loaded, f"it called the interface {len(collector.layers)} times for {expected} layers")
    total = torch.stack(collector.layers).mean(dim=0)
    return ContextAttention(attention=np.asarray(total.cpu().numpy(), dtype=np.float64), states=states)


def require_attention_interface(loaded: LoadedModel) -> None:
    """Raise GateauError when this model's attention weights cannot be seen; costs no forward pass."""
    if not getattr(loaded.model, "_supports_attention_backend", False):
        raise _unsupported(loaded, "its code does not use the interface")
    if not _attention_layers(loaded):
        raise _unsupported(loaded, "it has no attention layers")


def _unsupported(loaded: LoadedModel, detail: str) -> GateauError:
    return GateauError(
        "segment attention (Eq. 4) needs a decoder that runs its attention through transformers' attention "
        f"interface, and {loaded.name} (model type {loaded.model.config.model_type}) does not: {detail}. "
        "Use an architecture such as Llama, Qwen or Mistral as models.long."
    )


def _attention_layers(loaded: LoadedModel) -> int:
    config = loaded.model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return config.num_hidden_layers
    return sum(kind in _ATTENTION_LAYERS for kind in kinds)


@contextmanager
def _collecting(loaded: LoadedModel, prompt: Prompt) -> Iterator[_Collector]:
    """Run the model with the registered function inside, and give it its own back afterwards."""
    own = loaded.model.config._attn_implementation or "sdpa"
    collector = _Collector(rows=prompt.response_span, columns=prompt.context_span)
    loaded.model.set_attn_implementation(_NAME)
    if loaded.model.config._attn_implementation != _NAME:
        raise _unsupported(loaded, "its attention function cannot be replaced")
    token = _active.set(collector)
    try:
        yield collector
    finally:
        _active.reset(token)
        loaded.model.set_attn_implementation(own)


def _attention_with_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key and value [1, H_kv, T, D] -> output [1, T, H, D]; statistics go to the collector."""
    collector = _active.get()
    assert collector is not None and query.shape[0] == 1 and query.shape[2] == key.shape[2], "one uncached prompt"
    for name in _UNKNOWN:
        if kwargs.get(name) is not None:
            raise GateauError(f"segment attention (Eq. 4) is not defined here for attention with {name}: use a Llama")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    options = {"scaling": scaling, "softcap": softcap, "sinks": s_aux, "mask": attention_mask}
    start, stop = collector.rows
    first, last = collector.columns
    total = torch.zeros(last - first, dtype=torch.float64, device=query.device)
    precise_key = key.to(torch.promote_types(key.dtype, torch.float32))  # once, not once a block
    for begin, end in row_blocks(query, start, stop):
        weights = attention_rows(query, precise_key, begin, end, **options)
        total += weights[..., first:last].sum(dim=(0, 1, 2)).double()
    collector.layers.append(total / (query.shape[1] * (stop - start)))
    if softcap is None and s_aux is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    return _output_in_blocks(query, key, value, options), None


def _output_in_blocks(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """The attention output [1, T, H, D] for what sdpa cannot do: soft caps (Gemma 2) and sinks (gpt-oss)."""
    outputs = []
    for begin, end in row_blocks(query, 0, query.shape[2]):
        weights = attention_rows(query, key, begin, end, **options)  # [H_kv, G, R, T]
        mixed = weights.to(value.dtype) @ value[0].unsqueeze(1)  # [H_kv, G, R, D]
        outputs.append(mixed.flatten(0, 1).transpose(0, 1))  # [R, H, D]
    return torch.cat(outputs).unsqueeze(0)


AttentionInterface.register(_NAME, _attention_with_rows)
AttentionMaskInterface.register(_NAME, sdpa_mask)
