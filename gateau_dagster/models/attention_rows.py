"""Rows of an attention matrix, some at a time: softmax(q Kᵀ) for a few queries of one document."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gateau_dagster.models.mask_pattern import MaskPattern

# Elements of a block of weights (heads x rows x keys). 2^19 are 2 MB in float32: a CPU's second-level cache, where
# the softmax finds what the matrix product left.
_ELEMENTS_PER_BLOCK = {"cpu": 2**19, "cuda": 2**26}


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """How a layer turns q kᵀ into weights: scale, cap, then a softmax over the keys of the window and the sink."""

    scaling: float
    window: int | None = None  # keys that a query sees, itself included; None: all before it
    softcap: float | None = None
    sinks: Tensor | None = None  # [H]: join each row's softmax and take weight

    def first_key(self, query: int) -> int:
        """The first key that this query sees."""
        return 0 if self.window is None else max(0, query - self.window + 1)


def attention_spec(
    query: Tensor, pattern: MaskPattern, *, scaling: float | None, softcap: float | None, sinks: Tensor | None
) -> AttentionSpec:
    """From what transformers hands to a layer's attention function; `query` [..., D], `scaling` None: 1 / sqrt(D)."""
    scale = float(query.shape[-1] ** -0.5) if scaling is None else scaling
    return AttentionSpec(scaling=scale, window=pattern.window, softcap=softcap, sinks=sinks)


def row_blocks(
    query: Tensor, kv_heads: int, start: int, stop: int, how: AttentionSpec
) -> Iterator[tuple[slice, slice]]:
    """Cut the query rows [start, stop) of `query` [H, T, D] into blocks of (key-value heads, rows) of bounded size."""
    bound = _ELEMENTS_PER_BLOCK.get(query.device.type, 2**19)
    per_row = query.shape[0] // kv_heads * (stop - how.first_key(start))  # elements of one key-value head
    rows = min(stop - start, max(1, bound // per_row))
    heads = max(1, bound // (per_row * rows))
    for head in range(0, kv_heads, heads):
        for begin in range(start, stop, rows):
            yield slice(head, min(head + heads, kv_heads)), slice(begin, min(begin + rows, stop))


def attention_rows(query: Tensor, key: Tensor, heads: slice, rows: slice, how: AttentionSpec) -> Tensor:
    """Weights of some rows of some key-value heads: [h, G, R, N], float32 or better.

    query [H, T, D]; key [H_kv, T, D], each shared by G = H / H_kv heads and not copied for them. The N keys are those
    from how.first_key(rows.start) to rows.stop: the rest has no weight. Columns a row does not see are 0.
    """
    first = how.first_key(rows.start)
    groups = query.shape[0] // key.shape[0]
    some = query[heads.start * groups : heads.stop * groups, rows]  # [h G, R, D]
    some = some.reshape(heads.stop - heads.start, -1, query.shape[-1])
    scores = _products(some, key[heads, first : rows.stop].transpose(1, 2), how.scaling)
    scores = scores.view(scores.shape[0], groups, rows.stop - rows.start, -1)
    if how.softcap is not None:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    _hide(scores, rows, how)
    if how.sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = how.sinks.to(scores.dtype).view(-1, groups, 1, 1)[heads].expand(-1, -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


def _products(queries: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """scaling · queries [h, G R, D] @ keys [h, D, N], in float32 or better: [h, G R, N]."""
    if queries.is_cuda and queries.dtype in (torch.float16, torch.bfloat16):
        # Products of half-precision numbers, added up and returned in float32: no copy of the keys.
        return torch.bmm(queries, keys, out_dtype=torch.float32).mul_(scaling)
    dtype = torch.promote_types(queries.dtype, torch.float32)
    return torch.bmm(queries.to(dtype) * scaling, keys.to(dtype))


def _hide(scores: Tensor, rows: slice, how: AttentionSpec) -> None:
    """-inf to the scores [..., R, N] of keys a row does not see; only columns at the two ends can hold any."""
    count, first = rows.stop - rows.start, how.first_key(rows.start)
    future = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
    scores[..., rows.start - first :].masked_fill_(future, -torch.inf)
    past = how.first_key(rows.stop - 1) - first  # columns that some row sees no more
    if past:
        columns = torch.arange(first, first + past, device=scores.device)
        oldest = torch.arange(rows.start, rows.stop, device=scores.device) - (how.window or 0)
        scores[..., :past].masked_fill_(columns <= oldest[:, None], -torch.inf)
