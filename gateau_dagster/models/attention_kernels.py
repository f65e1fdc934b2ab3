"""Compute the attention of one layer over packed documents by the fastest exact way in linear memory.

On CUDA that is one call of the variable-length FlashAttention kernel. Elsewhere it is causal sdpa for all documents of
one length at a time. Soft caps and sinks, which no kernel supports, are computed in blocks of rows.
"""

from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from gateau_dagster.models.attention_rows import AttentionSpec, attention_rows, row_blocks
from gateau_dagster.models.last_layers import Span

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
    if how.softcap is not None or how.sinks is not None or width > size:
        return _in_blocks(query, key, value, lengths, how, spans)
    if width < size:  # the kernels need equal sizes
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
