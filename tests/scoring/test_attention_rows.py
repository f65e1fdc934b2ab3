"""Rows of softmax(q Kᵀ) against the whole matrix, in every variant."""

import pytest
import torch

from gateau_dagster.scoring.attention_rows import attention_rows, row_blocks

HEADS, GROUPS, LENGTH, DIM = 6, 2, 23, 8


def _tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, HEADS, LENGTH, DIM, generator=generator).to(dtype)
    return query, torch.randn(1, GROUPS, LENGTH, DIM, generator=generator).to(dtype)


def _twin(query, key, mask=None, softcap=None, sinks=None) -> torch.Tensor:
    """[H, T, T] head by head, row by row, in float64."""
    out = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(HEADS):
        for row in range(LENGTH):
            scores = key[0, head // (HEADS // GROUPS)].double() @ query[0, head, row].double() * 0.3
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            allowed = torch.arange(LENGTH) <= row if mask is None else mask[0, head % mask.shape[1], row]
            weights = torch.where(allowed, scores.exp(), 0.0)
            sink = 0.0 if sinks is None else sinks[head].double().exp()
            out[head, row] = weights / (weights.sum() + sink)
    return out


def _window(heads: int) -> torch.Tensor:
    row, column = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    one = (column <= row) & (column > row - 5)
    return torch.stack([one | (column == 0) if head % 2 else one for head in range(heads)])[None]


@pytest.mark.parametrize("heads_in_mask", [None, 1, HEADS])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_agree_with_the_twin(heads_in_mask: int | None, softcap: float | None, with_sinks: bool) -> None:
    query, key = _tensors()
    mask = None if heads_in_mask is None else _window(heads_in_mask)
    sinks = torch.linspace(-1, 2, HEADS) if with_sinks else None
    got = attention_rows(query, key, 9, 17, scaling=0.3, mask=mask, softcap=softcap, sinks=sinks)
    assert got.shape == (GROUPS, HEADS // GROUPS, 8, LENGTH) and got.dtype == torch.float32
    want = _twin(query, key, mask=mask, softcap=softcap, sinks=sinks)[:, 9:17]
    torch.testing.assert_close(got.flatten(0, 1).double(), want, rtol=1e-5, atol=1e-7)


def test_additive_mask_is_the_boolean_one() -> None:
    query, key = _tensors()
    mask = _window(1)
    additive = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    got = attention_rows(query, key, 0, LENGTH, scaling=0.3, mask=additive)
    torch.testing.assert_close(got, attention_rows(query, key, 0, LENGTH, scaling=0.3, mask=mask))


def test_bfloat16_is_multiplied_and_normalised_in_float32() -> None:
    query, key = _tensors(torch.bfloat16)
    got = attention_rows(query, key, 3, 9, scaling=0.3)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.flatten(0, 1).double(), _twin(query, key)[:, 3:9], rtol=1e-5, atol=1e-7)


def test_blocks_cover_the_rows_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateau_dagster.scoring import attention_rows as module

    query, _ = _tensors()
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", 4 * HEADS * LENGTH + 1)
    assert list(row_blocks(query, 3, 13)) == [(3, 7), (7, 11), (11, 13)]
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", 1)
    assert list(row_blocks(query, 3, 5)) == [(3, 4), (4, 5)]
