"""Test in one process whether ranks that share a row would compute what one rank computes.

In Ulysses' exchange each rank keeps a part of the tokens, and the attention sees them all. This module runs a short row
of documents as a whole and keeps the attention of each layer. Then it runs each part alone and answers its attention
from what was kept. If the parts come out as in the whole, the model's tokens interact in the attention only, and it
knows their positions.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from gateau_dagster.models.body import body_of
from gateau_dagster.models.mask_pattern import UnknownAttentionError, describe_mask
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING, probe_ids, probing
from gateau_dagster.models.training_attention import attend_row

NAME = "gateau_parts_of_a_row"  # names the attention function and the mask function in transformers' registries
_LENGTHS, _PARTS = (4, 5, 3), (slice(0, 6), slice(6, 12))  # the second document is in both parts
_POSITIONS = (0, 1, 2, 3, 0, 1, 7, 8, 9, 0, 1, 5)  # some are skipped


@dataclass(kw_only=True)
class _Layers:
    """The input and output of each layer's attention over the whole row; `part` is the part that runs now."""

    inputs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # [1, heads, tokens, size] each
    outputs: list[Tensor] = field(default_factory=list)  # [1, tokens, heads, size]
    part: slice | None = None
    layer: int = 0
    alike: bool = True  # whether each part's queries, keys and values equal those of the whole


class _UnequalPartsError(Exception):
    """The reason why parts do not come out as in the whole."""


def parts_differ(model: PreTrainedModel) -> str | None:
    """Return why ranks that share a row would compute something else than one rank; None if they would not.

    `model` attends within documents (models.training_attention). Under ZeRO-3 all ranks must call it. Out-of-memory
    errors are raised.
    """
    own = model.config._attn_implementation
    assert own is not None
    try:
        _compare(model)
    except (_UnequalPartsError, UnknownAttentionError) as error:
        return str(error)
    except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # it does not depend on the model
        first = str(error).partition("\n")[0]
        return f"its code fails in a trial ({type(error).__name__}: {first})"
    finally:
        model.set_attn_implementation(own)
    return None


def _compare(model: PreTrainedModel) -> None:
    whole_row, layers = slice(0, len(_POSITIONS)), _Layers()
    wanted = _states(model, whole_row)
    most = ROUNDING[wanted.dtype]
    model.set_attn_implementation(NAME)
    if not _difference(_states(model, whole_row, layers), wanted) <= most:
        raise _UnequalPartsError("its attention function cannot be replaced")
    for layers.part in _PARTS:
        layers.layer = 0
        states = _states(model, layers.part, layers)
        if not (layers.alike and _difference(states, wanted[layers.part]) <= most):
            raise _UnequalPartsError("a part of a sequence comes out otherwise than in the whole")


def _states(model: PreTrainedModel, part: slice, layers: _Layers | None = None) -> Tensor:
    """Return the last hidden states [tokens, hidden] of a part of the probe's row; `layers`: see `_attend`."""
    ids = probe_ids(model, len(_POSITIONS))[None, part]
    positions = torch.tensor([_POSITIONS], device=ids.device)[:, part]
    borders = torch.tensor((0, *_LENGTHS), device=ids.device).cumsum(0).to(torch.int32)
    documents = {f"cu_seq_lens_{side}": borders for side in "qk"} | {
        f"max_length_{side}": max(_LENGTHS) for side in "qk"
    }
    told = {} if layers is None else {"gateau_layers": layers}
    with probing(model):
        output = body_of(model)(
            input_ids=ids, position_ids=positions, use_cache=False, return_dict=True, **documents, **told
        )
    return output.last_hidden_state[0]


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
    """Attend from query [1, H, T, D] to key and value [1, H_kv, T, D] of the whole row; return [1, T, H, D]."""
    if gateau_layers is None:
        raise _UnequalPartsError("it does not tell its attention what its forward is told")
    part, layer = gateau_layers.part, gateau_layers.layer
    if part is None:
        _check_heads(module, query, key, value)
        output, _ = attend_row(module, query, key, value, attention_mask, **kwargs)  # pyright: ignore[reportCallIssue]
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


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, describe_mask)  # pyright: ignore[reportArgumentType]
