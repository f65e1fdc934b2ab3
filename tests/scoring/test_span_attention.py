"""Pairwise Focus Scores against whole eager matrices in float64, in memory linear in the length."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gateau_dagster.models import attention_rows
from gateau_dagster.models.attention_rows import AttentionSpec
from gateau_dagster.models.flops import ForwardWork, ModelShape
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.scoring.documents import text_ids
from gateau_dagster.scoring.focus_scores import FocusPlan, Variant
from gateau_dagster.scoring.span_attention import _SpanCollector, pairwise_focus_scores, span_attention_flops
from tests.error_codes import refused
from tests.scoring.slow_ladm import eager_matrices, slow_pairs, slow_pfs
from tests.tiny_models import Largest, loaded_model, tokenizer

LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def _plan(variant: Variant = "paper") -> FocusPlan:
    return FocusPlan(
        span_length=16, first_spans=1, local_spans=2, earlier_stride=2, later_stride=3, first_scored=5, variant=variant
    )


def _ids(tokens: int = 250) -> tuple[int, ...]:
    return text_ids(tokenizer(), LICENCE[2000:6000], max_tokens=tokens)


def _twin(model: Any, ids: tuple[int, ...], variant: Variant, length: int = 16) -> np.ndarray:
    program = variant == "program"
    pairs = slow_pairs(len(ids), length=length, m=1, n=2, d=2, d_later=3, n0=5, program=program)
    return np.array(
        [
            [slow_pfs(matrix, i, j, length, program) for j, earlier in pairs for i in earlier]
            for matrix in eager_matrices(model, ids)
        ]
    )


def _check(loaded: LoadedModel, variant: Variant, rtol: float) -> None:
    ids = _ids()
    got = pairwise_focus_scores(loaded, ids, _plan(variant))
    want = _twin(loaded.model, ids, variant)
    assert got.dtype == torch.float64 and got.shape == want.shape == (2, want.shape[1])
    np.testing.assert_allclose(got.numpy(), want, rtol=rtol, atol=1e-12)
    assert want.std() > 0.05 * want.mean(), "a flat reference would prove nothing"


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "gpt_oss"])
def test_agrees_with_eager_matrices_on_real_prose(kind: str, variant: Variant) -> None:
    _check(loaded_model(kind), variant, 1e-4)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_float64_model_agrees_as_far_as_the_eager_softmax_goes(kind: str, variant: Variant) -> None:
    # transformers' eager attention takes its softmax in float32, whatever the model's precision.
    changes: dict[str, Any] = {"sliding_window": 75} if kind == "mistral" else {}
    _check(loaded_model(kind, dtype=torch.float64, **changes), variant, 1e-6)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize(
    "pattern", [MaskPattern(), MaskPattern(window=21), MaskPattern(window=3), MaskPattern(chunk=24)]
)
@pytest.mark.parametrize("elements", [100, 2**19])
def test_layer_is_made_of_a_whole_matrix(
    pattern: MaskPattern, variant: Variant, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(attention_rows._ELEMENTS_PER_BLOCK, "cpu", elements)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(heads, 69, 8, generator=generator, dtype=torch.float64) for heads in (4, 2))
    plan = replace(_plan(variant), span_length=8, local_spans=0, earlier_stride=1)
    collector = _SpanCollector(plan=plan, tokens=69)
    collector.observe(query, key, pattern, AttentionSpec(scaling=0.3, window=pattern.window))
    hidden = torch.tensor([[not pattern.sees(row, column) for column in range(69)] for row in range(69)])
    scores = query @ key.repeat_interleave(2, dim=0).transpose(1, 2) * 0.3
    matrix = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    program = variant == "program"
    pairs = slow_pairs(69, length=8, m=1, n=0, d=1, d_later=3, n0=5, program=program)
    want = [slow_pfs(matrix, i, j, 8, program) for j, earlier in pairs for i in earlier]
    np.testing.assert_allclose(collector.layers[0].numpy(), want, rtol=1e-11, atol=1e-15)


def test_bfloat16_agrees_within_a_percent() -> None:
    half, ids = loaded_model("llama", dtype=torch.bfloat16), _ids()
    got = pairwise_focus_scores(half, ids, _plan()).numpy()
    np.testing.assert_allclose(got, _twin(half.model, ids, "paper"), rtol=3e-2)


def test_tokens_and_flops_are_charged() -> None:
    loaded, ids, work = loaded_model("llama"), _ids(), ForwardWork()
    plan = _plan()
    pairwise_focus_scores(loaded, ids, plan, work)
    shape = ModelShape.of(loaded.model.config)
    # Spans 5, 8, 11 and 14 of 16 tokens, which begin after 250 - 15 * 16 = 10: 2 FLOPs a layer, head, query, key, size.
    rows = sum(2 * 2 * 4 * 16 * 16 * (10 + 16 * (j + 1)) for j in (5, 8, 11, 14))
    assert work.tokens == len(ids) == 250
    assert work.flops == span_attention_flops(shape, 250, plan)
    assert work.flops - rows == pytest.approx(shape.pass_flops(np.array([250.0]))[0])


@pytest.mark.parametrize("variant", ["paper", "program"])
def test_no_tensor_grows_with_the_square_of_the_length(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, length = loaded_model("llama"), 1600
    ids = torch.randint(5, 400, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    monkeypatch.setitem(attention_rows._ELEMENTS_PER_BLOCK, "cpu", 100_000)
    packs_documents(loaded)
    with Largest() as seen:
        pairwise_focus_scores(loaded, ids, _plan(variant))
    # The largest are the feed-forward's: length x 96; a head's matrix would have length².
    assert 96 * length <= seen.elements < 2 * 96 * length


def test_model_without_the_interface_is_refused() -> None:
    with refused("models.no_attention"):
        pairwise_focus_scores(loaded_model("mamba"), _ids(), _plan())


def test_layer_that_was_not_seen_is_an_error_not_a_zero() -> None:
    loaded = loaded_model("llama")
    layer: Any = loaded.model.get_submodule("model.layers.1.self_attn")
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    with refused("models.no_attention", "1.*2"):
        pairwise_focus_scores(loaded, _ids(), _plan())
