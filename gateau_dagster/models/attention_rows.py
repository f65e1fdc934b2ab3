"""Compute the attention of one document in blocks of rows: softmax(q Kᵀ) of a few queries, or their output."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gateau_dagster.models.mask_pattern import MaskPattern

# Elements of a block of weights (heads x rows x keys). 2^19 are 2 MB in float32: they stay in a CPU's second-level
# cache between the matrix product and the softmax.
_ELEMENTS_PER_BLOCK = {"cpu": 2**19, "cuda": 2**26}


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """The way a layer turns q kᵀ into weights: scale, cap, then a softmax over the keys of the window and the sink."""

    scaling: float
    window: int | None = None  # keys that a query sees, itself included; None: all before it
    softcap: float | None = None
    sinks: Tensor | None = None  # [H]: join each row's softmax and take part of the weight

    def first_key(self, query: int) -> int:
        """Return the first key that this query sees."""
        return 0 if self.window is None else max(0, query - self.window + 1)


def attention_spec(
    query: Tensor, pattern: MaskPattern, *, scaling: float | None, softcap: float | None, sinks: Tensor | None
) -> AttentionSpec:
    """Return the spec of a layer from the arguments of its attention function; query [..., D].

    scaling: None means 1 / sqrt(D).
    """
    scale = float(query.shape[-1] ** -0.5) if scaling is None else scaling
    return AttentionSpec(scaling=scale, window=pattern.window, softcap=softcap, sinks=sinks)


def row_blocks(
    query: Tensor, kv_heads: int, start: int, stop: int, how: AttentionSpec
) -> Iterator[tuple[slice, slice]]:
    """Yield the query rows [start, stop) of `query` [H, T, D] in bounded blocks of (key-value heads, rows)."""
    bound = _ELEMENTS_PER_BLOCK.get(query.device.type, 2**19)
    per_row = query.shape[0] // kv_heads * (stop - how.first_key(start))  # elements of one key-value head
    rows = min(stop - start, max(1, bound // per_row))
    heads = max(1, bound // (per_row * rows))
    for head in range(0, kv_heads, heads):
        for begin in range(start, stop, rows):
            yield slice(head, min(head + heads, kv_heads)), slice(begin, min(begin + rows, stop))


def attention_rows(query: Tensor, key: Tensor, heads: slice, rows: slice, how: AttentionSpec) -> Tensor:
    """Return the weights of some rows of some key-value heads: [h, G, R, N], float32 or better.

    query [H, T, D]; key [H_kv, T, D], each shared by G = H / H_kv heads without a copy per head. The N keys are those
    from how.first_key(rows.start) to rows.stop: no other key has weight. Keys that a row does not see have weight 0.
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
    """Return scaling · queries [h, G R, D] @ keys [h, D, N], in float32 or better: [h, G R, N]."""
    if queries.is_cuda and queries.dtype in (torch.float16, torch.bfloat16):
        # Multiply in half precision, and add up in float32, which needs no copy of the keys.
        return torch.bmm(queries, keys, out_dtype=torch.float32).mul_(scaling)
    dtype = torch.promote_types(queries.dtype, torch.float32)
    return torch.bmm(queries.to(dtype) * scaling, keys.to(dtype))


def _hide(scores: Tensor, rows: slice, how: AttentionSpec) -> None:
    """Set the scores [..., R, N] of keys that a row does not see to -inf; only columns at the two ends can hold any."""
    count, first = rows.stop - rows.start, how.first_key(rows.start)
    future = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
    scores[..., rows.start - first :].masked_fill_(future, -torch.inf)
    past = how.first_key(rows.stop - 1) - first  # columns that some row no longer sees
    if past:
        columns = torch.arange(first, first + past, device=scores.device)
        oldest = torch.arange(rows.start, rows.stop, device=scores.device) - (how.window or 0)
        scores[..., :past].masked_fill_(columns <= oldest[:, None], -torch.inf)


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], how: AttentionSpec) -> Tensor:
    """Attend causally within documents of these lengths, side by side; return [T, H, D_v] in the values' dtype.

    query [H, T, D]; key [H_kv, T, D] and value [H_kv, T, D_v], each shared by H / H_kv heads. Scores and softmax are
    float32 or better.
    """
    groups = query.shape[0] // key.shape[0]
    documents: list[Tensor] = []
    begin = 0
    for length in lengths:
        q, k, v = (tensor[:, begin : begin + length] for tensor in (query, key, value))
        heads: dict[int, list[Tensor]] = {}
        for some, rows in row_blocks(q, key.shape[0], 0, length, how):
            first = how.first_key(rows.start)
            sinks = None if how.sinks is None else how.sinks.unflatten(0, (-1, groups))[some]
            block = checkpoint(
                _block,
                q.unflatten(0, (-1, groups))[some, :, rows],
                k[some, first : rows.stop],
                v[some, first : rows.stop],
                sinks,
                rows.start - first,
                how,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            assert isinstance(block, Tensor)
            heads.setdefault(some.start, []).append(block)
        documents.append(torch.cat([torch.cat(rows, dim=2) for rows in heads.values()]))
        begin += length
    return torch.cat(documents, dim=2).flatten(0, 1).transpose(0, 1)


def _block(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, before: int, how: AttentionSpec) -> Tensor:
    """Attend from query [h, G, R, D] to key [h, N, D] and value [h, N, D_v] with sinks [h, G]; return [h, G, R, D_v].

    Row r sees the keys up to before + r, at most the window of them.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast(query.device.type, enabled=False):
        scores = query.to(dtype) * how.scaling @ key.to(dtype)[:, None].transpose(2, 3)  # [h, G, R, N]
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        last = before + torch.arange(query.shape[2], device=query.device)[:, None]
        column = torch.arange(key.shape[1], device=query.device)
        hidden = column > last
        if how.window is not None:
            hidden = hidden | (column <= last - how.window)
        scores = scores.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            sink = sinks.to(dtype)[:, :, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : key.shape[1]]
        return weights.to(value.dtype) @ value[:, None]
