"""Attention with gradients that no kernel knows, with a soft cap or sinks: some rows of the weights at a time.

A block's weights are computed again for its gradients, so that no more than one block of them exists at any time.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gateau_dagster.models.attention_rows import AttentionSpec, row_blocks


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], how: AttentionSpec) -> Tensor:
    """Causal attention within documents of these lengths, side by side: [T, H, D_v] in the values' dtype.

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
    """query [h, G, R, D], key [h, N, D], value [h, N, D_v], sinks [h, G] -> [h, G, R, D_v].

    Row r sees the keys up to before + r, no more than the window of them.
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
