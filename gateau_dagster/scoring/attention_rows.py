"""Rows of an attention matrix, some at a time: softmax(q Kᵀ) for a few queries of one prompt."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Elements of a block of weights (heads x rows x keys): 2^22 are 16 MB in float32, and stay near a CPU's cache.
_ELEMENTS_PER_BLOCK = {"cpu": 2**22, "cuda": 2**26}


def row_blocks(query: Tensor, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut the query rows [start, stop) of `query` [1, H, T, D] so that a block's weights stay within bounds."""
    per_row = query.shape[1] * query.shape[2]
    step = max(1, _ELEMENTS_PER_BLOCK.get(query.device.type, 2**22) // per_row)
    for begin in range(start, stop, step):
        yield begin, min(begin + step, stop)


def attention_rows(
    query: Tensor,
    key: Tensor,
    begin: int,
    end: int,
    *,
    scaling: float,
    mask: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention weights of queries [begin, end): [H_kv, G, R, T], float32 or better, over all T keys.

    query [1, H, T, D]; key [1, H_kv, T, D], shared by G = H / H_kv heads and not copied for them; mask None (causal)
    or [1, 1 or H, T, T], boolean (True: may attend) or additive; sinks [H] join each row's softmax and take weight.
    """
    heads, length, dim = query.shape[1:]
    groups = key.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows = query[0, :, begin:end].to(dtype).reshape(groups, heads // groups * (end - begin), dim)
    scores = rows @ key[0].to(dtype).transpose(1, 2) * scaling  # [H_kv, G R, T]
    scores = scores.view(groups, heads // groups, end - begin, length)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = _masked(scores, mask, begin, end)
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.to(dtype).reshape(groups, heads // groups, 1, 1).expand(-1, -1, end - begin, 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


def _masked(scores: Tensor, mask: Tensor | None, begin: int, end: int) -> Tensor:
    length = scores.shape[-1]
    if mask is None:
        queries = torch.arange(begin, end, device=scores.device)
        future = torch.arange(length, device=scores.device) > queries[:, None]
        return scores.masked_fill_(future, -torch.inf)
    rows = mask[0, :, begin:end, :length]  # [1 or H, R, T]
    if rows.shape[0] != 1:
        rows = rows.reshape(scores.shape)
    if rows.dtype == torch.bool:
        return scores.masked_fill_(~rows, -torch.inf)
    return scores + rows.to(scores.dtype)
