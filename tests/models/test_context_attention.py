"""Context attention by Eq. 4 against whole eager matrices, and that it never comes out silently wrong."""

from typing import Any

import numpy as np
import pytest
import torch

from gateau_dagster.models import attention_kernels, forward
from gateau_dagster.models.attention_kernels import AttentionSpec
from gateau_dagster.models.context_attention import _AttentionCollector, context_attention, require_attention_interface
from gateau_dagster.models.forward import response_states, token_nll
from gateau_dagster.models.mask_pattern import MaskPattern
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.models.prompt import Prompt, build_prompt
from tests.kit.error_codes import refused
from tests.kit.tiny_models import Largest, loaded_model, samples, tokenizer
from tests.scoring.builders import reference_model

_KINDS = ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2", "gemma3_text", "gpt_oss"]


def _prompt() -> Prompt:
    return build_prompt(tokenizer(), samples()[0], max_length=300)


def _eager(model: Any, prompt: Prompt) -> np.ndarray:
    matrices = reference_model(model)(
        input_ids=torch.tensor([prompt.ids]), output_attentions=True, use_cache=False
    ).attentions
    stacked = torch.stack([matrix[0] for matrix in matrices])  # [layers, H, T, T]
    return stacked[:, :, slice(*prompt.response_span), slice(*prompt.context_span)].mean(dim=(0, 1, 2)).numpy()


@pytest.mark.parametrize("kind", _KINDS)
def test_token_attention_agrees_with_eager_matrices(kind: str) -> None:
    loaded, prompt = loaded_model(kind), _prompt()
    got = context_attention(loaded, prompt).attention
    want = _eager(loaded.model, prompt)
    assert got.shape == (len(prompt.context),) and got.dtype == torch.float64
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-12)
    assert want.std() > 0.05 * want.mean(), "a flat reference would prove nothing"


def test_sliding_window_hides_the_far_context() -> None:
    prompt = _prompt()
    near = context_attention(loaded_model("mistral"), prompt).attention
    everywhere = context_attention(loaded_model("mistral", sliding_window=None), prompt).attention
    assert near[0] == 0.0 and near[-1] > 0 and everywhere[0] > 0


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma2", "gpt_oss"])
def test_bfloat16_agrees_within_a_percent(kind: str) -> None:
    # One expert: a router that rounds to another expert is another model.
    changes: dict[str, Any] = {"num_local_experts": 1} if kind == "gpt_oss" else {}
    half, prompt = loaded_model(kind, dtype=torch.bfloat16, **changes), _prompt()
    got, want = context_attention(half, prompt).attention.numpy(), _eager(half.model, prompt)
    segments = range(0, len(want), 32)
    got, want = (np.array([values[begin : begin + 32].mean() for begin in segments]) for values in (got, want))
    np.testing.assert_allclose(got, want, rtol=1e-2)


@pytest.mark.parametrize("pattern", [MaskPattern(), MaskPattern(window=9), MaskPattern(chunk=16)])
@pytest.mark.parametrize("rows", [(20, 50), (49, 50), (1, 50)])
def test_layer_is_the_mean_of_a_whole_matrix(pattern: MaskPattern, rows: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(heads, 50, 8, generator=generator) for heads in (4, 2))
    collector = _AttentionCollector(rows=rows, columns=(3, 45))
    collector.observe(query, key, pattern, AttentionSpec(scaling=0.3, window=pattern.window))
    hidden = torch.tensor([[not pattern.sees(row, column) for column in range(50)] for row in range(50)])
    scores = query.double() @ key.double().repeat_interleave(2, dim=0).transpose(1, 2) * 0.3
    matrix = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    torch.testing.assert_close(
        collector.layers[0], matrix[:, slice(*rows), 3:45].mean(dim=(0, 1)), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_context_of_one_token(kind: str) -> None:
    loaded, prompt = loaded_model(kind), _prompt()
    prompt = prompt.with_context(prompt.context[:1])
    got = context_attention(loaded, prompt).attention
    np.testing.assert_allclose(got, _eager(loaded.model, prompt), rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_blocks_of_rows_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, prompt = loaded_model(kind), _prompt()
    whole = context_attention(loaded, prompt)
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 5 * 4 * prompt.length)
    blocked = context_attention(loaded, prompt)
    np.testing.assert_allclose(blocked.attention, whole.attention, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(blocked.states, whole.states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_same_pass_serves_the_perplexity(kind: str) -> None:
    loaded, prompt = loaded_model(kind), _prompt()
    plain = token_nll(loaded, response_states(loaded, [prompt]), prompt.response)
    served = token_nll(loaded, context_attention(loaded, prompt).states, prompt.response)
    np.testing.assert_allclose(served, plain, rtol=1e-4)


def test_model_gets_its_own_attention_back_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, prompt = loaded_model("llama"), _prompt()
    context_attention(loaded, prompt)
    assert loaded.model.config._attn_implementation == "sdpa"

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(attention_kernels, "_by_length", broken)
        with pytest.raises(RuntimeError, match="a bug"):
            context_attention(loaded, prompt)
    assert loaded.model.config._attn_implementation == "sdpa"
    assert context_attention(loaded, prompt).attention.sum() > 0


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("bloom", "does not use.*Llama"),
        ("mpt", "does not use.*Llama"),
        ("mamba", r"does not.*selection\.preset.*Llama"),
    ],
)
def test_model_without_the_interface_is_refused(kind: str, detail: str) -> None:
    with refused("models.no_attention", f"{kind}.*{detail}"):
        require_attention_interface(loaded_model(kind))


def test_layer_that_was_not_seen_or_has_an_unknown_bias_is_an_error_not_a_zero() -> None:
    loaded, biased = loaded_model("llama"), loaded_model("llama")
    layer: Any = loaded.model.get_submodule("model.layers.1.self_attn")
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    with refused("models.no_attention", "1.*2"):
        context_attention(loaded, _prompt())
    other: Any = biased.model.get_submodule("model.layers.0.self_attn")
    own = other.forward
    other.forward = lambda *args, **kwargs: own(*args, **kwargs, position_bias=torch.zeros(1))
    with refused("models.no_attention", "position_bias"):
        context_attention(biased, _prompt())


def test_model_that_ignores_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    monkeypatch.setattr(type(loaded.model), "_can_set_attn_implementation", classmethod(lambda _: False))
    with refused("models.no_attention"):
        context_attention(loaded, _prompt())


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_no_tensor_grows_with_the_square_of_the_length(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, length = loaded_model(kind), 1500
    ids = tuple(torch.randint(5, 400, (length,), generator=torch.Generator().manual_seed(0)).tolist())
    prompt = Prompt(prefix=ids[:2], context=ids[2:1000], suffix=ids[1000:1010], response=ids[1010:])
    monkeypatch.setitem(attention_kernels._ELEMENTS_PER_BLOCK, "cpu", 100_000)
    monkeypatch.setitem(forward._LOGITS_PER_CHUNK, "cpu", 100_000)
    packs_documents(loaded)
    with Largest() as seen:
        token_nll(loaded, context_attention(loaded, prompt).states, prompt.response)
        response_states(loaded, [prompt, prompt.with_context(())])
    # The largest are the feed-forward's: length x 96. A matrix would have length², all logits length x 400.
    assert 96 * length <= seen.elements < 2 * 96 * length
