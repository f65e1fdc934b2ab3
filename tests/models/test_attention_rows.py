"""Rows of softmax(q Kᵀ) against the whole matrix, in every variant."""

import pytest
import torch

from gateau_dagster.models import attention_rows as module
from gateau_dagster.models.attention_rows import AttentionSpec, attention_rows, row_blocks

HEADS, GROUPS, LENGTH, DIM = 6, 2, 23, 8


def _tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, LENGTH, DIM, generator=generator).to(dtype)
    return query, torch.randn(GROUPS, LENGTH, DIM, generator=generator).to(dtype)


def _twin(query: torch.Tensor, key: torch.Tensor, how: AttentionSpec) -> torch.Tensor:
    """[H, T, T] head by head, row by row, in float64."""
    out = torch.zeros(HEADS, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(HEADS):
        for row in range(LENGTH):
            scores = key[head // (HEADS // GROUPS)].double() @ query[head, row].double() * how.scaling
            if how.softcap:
                scores = how.softcap * torch.tanh(scores / how.softcap)
            allowed = torch.arange(LENGTH) <= row
            if how.window is not None:
                allowed &= torch.arange(LENGTH) > row - how.window
            weights = torch.where(allowed, scores.exp(), 0.0)
            sink = 0.0 if how.sinks is None else how.sinks[head].double().exp()
            out[head, row] = weights / (weights.sum() + sink)
    return out


def _whole(query: torch.Tensor, key: torch.Tensor, how: AttentionSpec, start: int) -> torch.Tensor:
    """[H, LENGTH - start, LENGTH] put together from blocks."""
    out = torch.zeros(GROUPS, HEADS // GROUPS, LENGTH, LENGTH, dtype=torch.float32)
    for heads, rows in row_blocks(query, GROUPS, start, LENGTH, how):
        weights = attention_rows(query, key, heads, rows, how)
        assert weights.dtype == torch.float32
        out[heads, :, rows, how.first_key(rows.start) : rows.stop] = weights
    return out.flatten(0, 1)[:, start:]


@pytest.mark.parametrize("elements", [1, 50, 400, 100_000])
@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_agree_with_the_twin(
    elements: int, window: int | None, softcap: float | None, with_sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", elements)
    query, key = _tensors()
    sinks = torch.linspace(-1, 2, HEADS) if with_sinks else None
    how = AttentionSpec(scaling=0.3, window=window, softcap=softcap, sinks=sinks)
    got = _whole(query, key, how, 7)
    torch.testing.assert_close(got.double(), _twin(query, key, how)[:, 7:], rtol=1e-5, atol=1e-7)


def test_bfloat16_is_multiplied_and_normalised_in_float32() -> None:
    query, key = _tensors(torch.bfloat16)
    how = AttentionSpec(scaling=0.3)
    got = _whole(query, key, how, 3)
    torch.testing.assert_close(got.double(), _twin(query, key, how)[:, 3:], rtol=1e-5, atol=1e-7)


def test_blocks_cover_the_rows_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    query, _ = _tensors()
    how = AttentionSpec(scaling=1.0)
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", 4 * 3 * 13 + 1)  # of 3 heads that share keys and 13 keys
    rows = [slice(3, 7), slice(7, 11), slice(11, 13)]
    assert list(row_blocks(query, GROUPS, 3, 13, how)) == [(slice(g, g + 1), r) for g in range(GROUPS) for r in rows]
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", 1)
    assert next(row_blocks(query, GROUPS, 3, 5, how)) == (slice(0, 1), slice(3, 4))
    monkeypatch.setitem(module._ELEMENTS_PER_BLOCK, "cpu", 1000)
    assert list(row_blocks(query, GROUPS, 3, 13, how)) == [(slice(0, 2), slice(3, 13))]
