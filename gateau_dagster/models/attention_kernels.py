"""Compute the attention of one layer over packed documents by the fastest exact way in linear memory.

On CUDA that is one call of the variable-length FlashAttention kernel. Elsewhere it is causal sdpa for all documents of
one length at a time. Soft caps and sinks, which no kernel supports, are computed in blocks of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from gateau_dagster.models.last_layers import Span
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
    keys = key[heads, first : rows.stop].transpose(1, 2)  # [h, D, N]
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        # Multiply in half precision, and add up in float32, which needs no copy of the keys.
        scores = torch.bmm(some, keys, out_dtype=torch.float32).mul_(how.scaling)
    else:
        dtype = torch.promote_types(query.dtype, torch.float32)
        scores = torch.bmm(some.to(dtype) * how.scaling, keys.to(dtype))
    scores = scores.view(scores.shape[0], groups, rows.stop - rows.start, -1)
    if how.softcap is not None:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    _hide(scores, rows, how)
    if how.sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = how.sinks.to(scores.dtype).view(-1, groups, 1, 1)[heads].expand(-1, -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


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
            # Recomputed in the backward pass: kept, the weights of all blocks together would be the T x T matrix again.
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


_HALF = (torch.float16, torch.bfloat16)
_SPAN_ROWS = 128  # rows in a block of read rows: its mask is this by the document's length
_ROWS = 64  # rows in a block of a sliding window: few compared with the window, enough for a kernel


def attend_documents(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: tuple[int, ...],
    how: AttentionSpec,
    starts: Callable[[tuple[int, ...], torch.device], Tensor],
    spans: tuple[Span, ...] | None = None,
) -> Tensor:
    """Attend within each of the documents of these lengths, side by side; return [T, H, D_v].

    query [H, T, D]; key [H_kv, T, D] and value [H_kv, T, D_v], each shared by H / H_kv heads without a copy per head.
    `starts` returns where the documents begin, int32 [documents + 1], on a device. `spans`: the rows of each document
    that are read; others may be zeros. On CUDA and in a sliding window no kernel is faster for some rows.
    """
    size, width = query.shape[-1], value.shape[-1]
    # Exact and slow, for models such as Gemma 2 and gpt-oss.
    if how.softcap is not None or how.sinks is not None or width > size:
        return _in_blocks(query, key, value, lengths, how, spans)
    if width < size:  # the kernels need equal sizes
        # Zeros add nothing to the weighted sum, and are cut off again.
        value = pad(value, (0, size - width))
    full = how.window is None or how.window >= max(lengths)
    uneven = len(set(lengths)) > 1 or not full
    if spans is not None and full and not query.is_cuda:  # CUDA's kernels accept no mask but a causal one
        out = _spans_by_length(query, key, value, lengths, spans, how)
    elif uneven and _flash(query):
        out = _variable_length(query, key, value, starts(lengths, query.device), max(lengths), how)
    else:
        out = _by_length(query, key, value, lengths, how)
    return out[..., :width]


def _flash(query: Tensor) -> bool:
    """Return whether FlashAttention runs here: an Ampere GPU or later, half precision, a supported head size."""
    size = query.shape[-1]
    if not query.is_cuda or query.dtype not in _HALF or size % 8 or size > 256:
        return False
    return torch.version.hip is None and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _variable_length(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, how: AttentionSpec
) -> Tensor:
    """Attend from [H, T, D] to keys and values [H_kv, T, D], all documents in one kernel; return [T, H, D]."""
    from torch.nn.attention.varlen import varlen_attn

    before = -1 if how.window is None else how.window - 1
    out = varlen_attn(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        starts,
        starts,
        longest,
        longest,
        scale=how.scaling,
        window_size=(before, 0),
        enable_gqa=query.shape[0] > key.shape[0],
    )
    assert isinstance(out, Tensor)
    return out


def _by_length(query: Tensor, key: Tensor, value: Tensor, pieces: tuple[int, ...], how: AttentionSpec) -> Tensor:
    """Attend from [H, T, D] to keys and values [H_kv, T, D], one call per run of equal lengths; return [T, H, D]."""
    outputs, begin = [], 0
    for length, run in groupby(pieces):
        count = len(list(run))
        end = begin + count * length
        q, k, v = (
            tensor[:, begin:end].unflatten(1, (count, length)).transpose(0, 1)  # [n, H, L, D], without copying
            for tensor in (query, key, value)
        )
        outputs.append(_windowed(q, k, v, how).transpose(1, 2).reshape(end - begin, *query.shape[::2]))
        begin = end
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _spans_by_length(
    query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], spans: tuple[Span, ...], how: AttentionSpec
) -> Tensor:
    """Compute _by_length for the rows of `spans` only, zeros elsewhere, per run of documents of one length and span."""
    out = query.new_zeros(query.shape[1], query.shape[0], query.shape[2])
    begin = 0
    for (length, (start, stop)), run in groupby(zip(lengths, spans, strict=True)):
        count = len(list(run))
        end = begin + count * length
        q, k, v = (t[:, begin:end].unflatten(1, (count, length)).transpose(0, 1) for t in (query, key, value))
        into = out[begin:end].unflatten(0, (count, length)).transpose(1, 2)  # [n, H, L, D], a view of `out`
        for first in range(start, stop, _SPAN_ROWS):
            last = min(first + _SPAN_ROWS, stop)
            mask = torch.ones(last - first, last, dtype=torch.bool, device=query.device).tril_(first)
            into[:, :, first:last] = _sdpa(q[:, :, first:last], k[:, :, :last], v[:, :, :last], how, mask)
        begin = end
    return out


def _windowed(query: Tensor, key: Tensor, value: Tensor, how: AttentionSpec) -> Tensor:
    """Attend causally in documents of one length, [n, H, L, D] to keys and values [n, H_kv, L, D]; return [n, H, L, D].

    A sliding window is computed in blocks of rows, each against the keys of its window: memory is linear in L.
    """
    length, window = query.shape[2], how.window
    if window is None or window >= length:
        return _sdpa(query, key, value, how, None)
    outputs = [_sdpa(query[:, :, :window], key[:, :, :window], value[:, :, :window], how, None)]
    # In every block, row r begins at key r of the block's keys and ends `window` later.
    band = torch.ones(_ROWS, _ROWS + window - 1, dtype=torch.bool, device=query.device)
    band = band.triu_().tril_(window - 1)
    for begin in range(window, length, _ROWS):
        end, first = min(begin + _ROWS, length), begin - window + 1
        mask = band[: end - begin, : end - first]
        outputs.append(_sdpa(query[:, :, begin:end], key[:, :, first:end], value[:, :, first:end], how, mask))
    return torch.cat(outputs, dim=2)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, how: AttentionSpec, mask: Tensor | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda and (mask is not None or not _flash(query)):
        # Among CUDA's kernels only FlashAttention shares keys between heads; without it sdpa builds T x T weights.
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=how.scaling,
        enable_gqa=query.shape[1] > key.shape[1],
    )


def _in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pieces: tuple[int, ...],
    how: AttentionSpec,
    spans: tuple[Span, ...] | None,
) -> Tensor:
    """Attend from [H, T, D] to keys [H_kv, T, D] and values [H_kv, T, D_v] in blocks of weight rows; return [T, H,
    D_v].
    """
    out = value.new_zeros(query.shape[1], key.shape[0], query.shape[0] // key.shape[0], value.shape[-1])
    begin = 0
    for index, length in enumerate(pieces):
        piece = slice(begin, begin + length)
        wanted = (0, length) if spans is None else spans[index]
        for heads, rows in row_blocks(query[:, piece], key.shape[0], *wanted, how):
            weights = attention_rows(query[:, piece], key[:, piece], heads, rows, how)  # [h, G, R, N]
            seen = value[heads, piece][:, None, how.first_key(rows.start) : rows.stop]
            mixed = weights.to(value.dtype) @ seen  # [h, G, R, D_v]
            out[begin + rows.start : begin + rows.stop, heads] = mixed.permute(2, 0, 1, 3)
        begin += length
    return out.flatten(1, 2)
