"""Attention of packed rows: several documents in one row, each attending only to itself, without a T x T mask.

An attention function registered with transformers takes the place of the model's own while `document_attention`
lasts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import AttentionInterface

from gateau_dagster.models.attention_kernels import attend_documents
from gateau_dagster.models.attention_rows import AttentionSpec, attention_spec
from gateau_dagster.models.last_layers import ReadRows, Span, only_read_rows
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.mask_pattern import NAME, MaskPattern, UnknownAttentionError, known_pattern

Observer: TypeAlias = Callable[[Tensor, Tensor, MaskPattern, AttentionSpec], None]


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The packed row that the model is running."""

    lengths: tuple[int, ...]  # of its documents
    observe: Observer | None
    read: ReadRows | None = None
    boundaries: dict[tuple[torch.device, tuple[int, ...]], Tensor] = field(default_factory=dict)

    def cu_seq_lens(self, pieces: tuple[int, ...], device: torch.device) -> Tensor:
        """Where each piece begins, and the end of the last: int32 [pieces + 1], copied to a device once."""
        if (device, pieces) not in self.boundaries:
            ends = torch.tensor((0, *pieces)).cumsum(0).to(torch.int32)
            self.boundaries[device, pieces] = ends.to(device, non_blocking=True)
        return self.boundaries[device, pieces]

    def spans(self, module: torch.nn.Module, pattern: MaskPattern) -> tuple[Span, ...] | None:
        """The rows of each document that this layer has to give; None: all."""
        if self.read is None or pattern.chunk is not None or getattr(module, "layer_idx", None) != self.read.layer:
            return None
        return self.read.spans


# transformers calls the attention function without a place for our state.
_running: ContextVar[_Row | None] = ContextVar("_running", default=None)


@contextmanager
def document_attention(
    loaded: LoadedModel, lengths: tuple[int, ...], observe: Observer | None = None, read: ReadRows | None = None
) -> Iterator[None]:
    """Run rows packed from documents of these lengths inside; the model gets its own attention back afterwards.

    `observe` sees query [H, T, D] and key [H_kv, T, D] of every layer. With `read`, the last layer's queries and output
    hold something in these rows only. Raises UnknownAttentionError, here or from the model, when its attention cannot
    be replaced exactly.
    """
    own = loaded.model.config._attn_implementation or "sdpa"
    loaded.model.set_attn_implementation(NAME)
    if loaded.model.config._attn_implementation != NAME:
        loaded.model.set_attn_implementation(own)  # parts of it may have taken it
        raise UnknownAttentionError("its attention function cannot be replaced")
    token = _running.set(_Row(lengths=lengths, observe=observe, read=read))
    try:
        with only_read_rows(loaded, read):
            yield
    finally:
        _running.reset(token)
        loaded.model.set_attn_implementation(own)


@torch.compiler.disable  # it looks at lengths in Python
def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key [1, H_kv, T, D], value [1, H_kv, T, D_v] -> output [1, T, H, D_v]."""
    row = _running.get()
    assert row is not None, "only inside document_attention"
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == sum(row.lengths):
        raise UnknownAttentionError("it attends to more or less than the prompt's tokens")
    pattern = known_pattern(attention_mask, kwargs)
    how = attention_spec(query, pattern, scaling=scaling, softcap=softcap, sinks=s_aux)
    if row.observe is not None:
        row.observe(query[0], key[0], pattern, how)
    pieces = pattern.pieces(row.lengths)
    spans = row.spans(module, pattern)
    out = attend_documents(query[0], key[0], value[0], pieces, how, row.cu_seq_lens, spans)
    return out[None].contiguous(), None  # as transformers' own functions: some models take a view of it


AttentionInterface.register(NAME, _attend)
