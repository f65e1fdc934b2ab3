"""Test in one process whether ranks that share a sequence would compute what one rank computes.

In Ulysses' exchange each rank keeps a part of the tokens, and the attention sees them all. This module runs a few
tokens as a whole and keeps the attention of each layer. Then it runs each part alone and answers its attention from
what was kept. If the parts come out as in the whole, the model's tokens interact in plain causal attention only, and it
knows their positions.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from gateau_dagster.models.body import body_of
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING, probe_ids, probing

NAME = "gateau_parts_of_a_sequence"  # names the attention function and mask function in transformers' registries
_TOKENS, _PARTS = 12, (slice(0, 5), slice(5, 12))


@dataclass(kw_only=True)
class _Layers:
    """The input and output of each layer's attention over the whole sequence; `part` is the part that runs now."""

    inputs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # [1, heads, tokens, size] each
    outputs: list[Tensor] = field(default_factory=list)  # [1, tokens, heads, size]
    part: slice | None = None
    layer: int = 0
    alike: bool = True  # whether each part's queries, keys and values equal those of the whole


class _UnequalPartsError(Exception):
    """The reason why parts do not come out as in the whole."""


def parts_differ(model: PreTrainedModel) -> str | None:
    """Return why ranks that share a sequence would compute something else than one rank; None if they would not.

    Under ZeRO-3 all ranks must call it. Out-of-memory errors are raised.
    """
    own = model.config._attn_implementation or "sdpa"
    if body_of(model) is model or not getattr(model, "_supports_attention_backend", False):
        return "its code does not use transformers' attention interface"
    if getattr(model.config.get_text_config(decoder=True), "attn_temperature_tuning", False):
        return "its attention counts tokens from the begin of each part"  # only beyond the length of a trial (Llama 4)
    try:
        ids = probe_ids(model, _TOKENS)[None]
        wanted = _states(model, input_ids=ids, attention_mask=torch.ones_like(ids))
        model.set_attn_implementation(NAME)
        _compare(model, ids, wanted)
    except _UnequalPartsError as error:
        return str(error)
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # it does not depend on the model
        first = str(error).partition("\n")[0]
        return f"its code fails in a trial ({type(error).__name__}: {first})"
    finally:
        model.set_attn_implementation(own)
    return None


def _compare(model: PreTrainedModel, ids: Tensor, wanted: Tensor) -> None:
    if model.config._attn_implementation != NAME:
        raise _UnequalPartsError("its attention function cannot be replaced")
    positions, layers, most = torch.arange(_TOKENS, device=ids.device)[None], _Layers(), ROUNDING[wanted.dtype]
    whole = _states(model, input_ids=ids, position_ids=positions, gateau_layers=layers)
    if not layers.outputs:
        raise _UnequalPartsError("it does not run its attention through transformers' interface")
    if not _difference(whole, wanted) <= most:
        raise _UnequalPartsError("its attention is not plainly causal, or counts positions otherwise than from 0")
    for layers.part in _PARTS:
        layers.layer = 0
        states = _states(
            model, input_ids=ids[:, layers.part], position_ids=positions[:, layers.part], gateau_layers=layers
        )
        if not (layers.alike and _difference(states, whole[layers.part]) <= most):
            raise _UnequalPartsError("a part of a sequence comes out otherwise than in the whole")


def _states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    with probing(model):
        return body_of(model)(**inputs, use_cache=False, return_dict=True).last_hidden_state[0]


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    gateau_layers: _Layers | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, H, T, D] to key and value [1, H_kv, T, D] without a mask; return [1, T, H, D]."""
    del attention_mask
    if gateau_layers is None or "position_ids" not in kwargs:
        raise _UnequalPartsError("it does not tell its attention what its forward is told, such as positions")
    part, layer = gateau_layers.part, gateau_layers.layer
    if part is None:
        _check_heads(module, query, key, value)
        output, _ = sdpa_attention_forward(module, query, key, value, None, **kwargs)
        gateau_layers.inputs.append((query, key, value))
        gateau_layers.outputs.append(output)
        return output, None
    for found, known in zip((query, key, value), gateau_layers.inputs[layer], strict=True):
        gateau_layers.alike &= _difference(found, known[:, :, part]) <= ROUNDING[found.dtype]
    gateau_layers.layer += 1
    return gateau_layers.outputs[layer][:, part], None


def _check_heads(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check that the heads match the configuration, because DeepSpeed distributes them by its numbers."""
    config: Any = module.config
    text, size = config.get_text_config(decoder=True), query.shape[-1]
    named = text.num_attention_heads, text.num_key_value_heads, getattr(text, "head_dim", None) or size
    if not named == (query.shape[1], key.shape[1], size) or {key.shape[-1], value.shape[-1]} != {size}:
        raise _UnequalPartsError("its attention heads are not those that its configuration names")


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the length of the difference of two tensors of one shape, relative to the expected one's."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).norm() / expected.norm())


def _no_mask(*_: Any, **__: Any) -> None:
    return None


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _no_mask)  # pyright: ignore[reportArgumentType]
