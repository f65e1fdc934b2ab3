"""LongAttn's figures against whole eager matrices, in memory linear in the length."""

from typing import Any

import numpy as np
import pytest
import torch

from gateau_dagster.models import attention_kernels
from gateau_dagster.models.attention_kernels import AttentionSpec
from gateau_dagster.models.loaded import ForwardWork
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.scoring.long_attention import _LayerFigures, _SeenError, long_attention, long_attention_flops
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model
from tests.scoring.builders import eager_matrices

IDS = tuple(np.random.default_rng(3).integers(5, 90, size=203).tolist())


def slow(matrix: torch.Tensor) -> tuple[list[float], list[float]]:
    """As the authors' program has it: a mask over the whole matrix [H, T, T], then its mean a row and its variance."""
    tokens = matrix.shape[-1]
    size = 3 * (tokens // 4)
    mask = torch.zeros(tokens, tokens)
    mask[tokens - size :, :size] = torch.tril(torch.ones(size, size))
    far = [head.double() * mask for head in matrix]
    return [float(head.sum() / tokens) for head in far], [float(head.var()) for head in far]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "gpt_oss"])
def test_agrees_with_the_whole_matrix(kind: str, layer: int, double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries' eager attention takes its softmax in float32, whatever the model's type: here in float64, too."""
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 2000)  # blocks of some rows of some heads
    if double:
        own = torch.nn.functional.softmax
        monkeypatch.setattr(torch.nn.functional, "softmax", lambda scores, dim, dtype=None: own(scores.double(), dim))
    loaded = loaded_model(kind, dtype=torch.float64 if double else torch.float32)
    found = long_attention(loaded, IDS, layer=layer)
    proportion, variance = slow(eager_matrices(loaded.model, IDS)[layer])
    close, least = (1e-6, 1e-12) if double else (1e-4, 1e-9)
    np.testing.assert_allclose(found.proportion, proportion, rtol=close, atol=least)
    np.testing.assert_allclose(found.variance, variance, rtol=close, atol=least / 1000)
    assert found.proportion.shape == found.variance.shape == (loaded.model.config.num_attention_heads,)


@pytest.mark.parametrize("tokens", [4, 5, 6, 7, 8, 9])
def test_short_texts(tokens: int) -> None:
    loaded = loaded_model("llama")
    found = long_attention(loaded, IDS[:tokens], layer=0)
    proportion, variance = slow(eager_matrices(loaded.model, IDS[:tokens])[0])
    np.testing.assert_allclose(found.proportion, proportion, rtol=1e-5)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-5)


@pytest.mark.parametrize(
    "pattern", [MaskPattern(), MaskPattern(window=90), MaskPattern(window=3), MaskPattern(chunk=60)]
)
def test_what_a_layer_does_not_see_has_no_weight(pattern: MaskPattern) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(4, 101, 8), torch.randn(2, 101, 8)
    collector = _LayerFigures(layer=0, tokens=101)
    with pytest.raises(_SeenError):
        collector.observe(query, key, pattern, AttentionSpec(scaling=0.3, window=pattern.window))
    scores = 0.3 * query @ key.repeat_interleave(2, dim=0).transpose(1, 2)
    rows, columns = torch.arange(101)[:, None], torch.arange(101)
    hidden = columns > rows
    if pattern.window:
        hidden |= columns <= rows - pattern.window
    if pattern.chunk:
        hidden |= columns // pattern.chunk != rows // pattern.chunk
    proportion, variance = slow(scores.masked_fill(hidden, -torch.inf).softmax(dim=-1))
    assert collector.found is not None
    np.testing.assert_allclose(collector.found.proportion, proportion, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(collector.found.variance, variance, rtol=1e-5, atol=1e-12)


def test_no_later_layer_is_run_and_the_work_is_charged() -> None:
    loaded, ran = loaded_model("llama"), list[int]()
    layers: Any = loaded.model.model.layers
    hooks = [
        layer.mlp.register_forward_hook(lambda *_, number=number: ran.append(number))
        for number, layer in enumerate(layers)
    ]
    work = ForwardWork()
    try:
        long_attention(loaded, IDS, layer=0, work=work)
        assert ran == []
        long_attention(loaded, IDS, layer=1, work=work)
        assert ran == [0]
    finally:
        for hook in hooks:
            hook.remove()
    shape, tokens = model_shape(loaded.model.config), np.array([float(len(IDS))])
    assert work.tokens == 2 * len(IDS)
    assert work.flops == pytest.approx(sum(float(long_attention_flops(shape, tokens, layer)[0]) for layer in (0, 1)))
    again = long_attention(loaded, IDS, layer=0)  # an ended pass leaves the model as it was
    np.testing.assert_array_equal(again.variance, long_attention(loaded, IDS, layer=0).variance)


def test_a_layer_that_is_not_there_is_named() -> None:
    with refused("methods.layer", r"options\.longattn\.layer.*7.*2"):
        long_attention(loaded_model("llama"), IDS, layer=7)
