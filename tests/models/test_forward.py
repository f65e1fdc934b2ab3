"""Passes and NLL against each prompt alone and the model's own logits, whatever is packed together."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from gateau_dagster.models import forward
from gateau_dagster.models.forward import HostCopy, response_nll, response_states, token_nll
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.segments import segment_prompts
from tests.error_codes import refused
from tests.scoring.reference import reference_model
from tests.tiny_models import loaded_model, samples, tokenizer

_PACKED = ["llama", "qwen3", "mistral", "gemma2", "gpt_oss"]  # windows of 150, 48 and 48 tokens, soft caps, sinks


def _prompts() -> list[Prompt]:
    """Segments of 160 and fewer context tokens, whole prompts, one context token, none."""
    built = [build_prompt(tokenizer(), sample, max_length=4096) for sample in samples()]
    return [*segment_prompts(built[3], 160), built[0], built[0].with_context(built[0].context[:1]), *built[1:3]]


def _slow_nll(loaded, prompt: Prompt) -> list[float]:
    """Alone, eager attention with whole matrices, all logits, float64."""
    logits = reference_model(loaded.model)(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0].double()
    first = prompt.length - len(prompt.response)
    rows = enumerate(prompt.response)
    return [(logits[first + i - 1].logsumexp(0) - logits[first + i - 1, token]).item() for i, token in rows]


@pytest.mark.parametrize("kind", [*_PACKED, "gpt2", "gemma3_text", "cohere", "bloom", "mamba"])
def test_packed_prompts_agree_with_the_slow_reference(kind: str) -> None:
    # bloom and mamba cannot be packed.
    loaded, prompts = loaded_model(kind), _prompts()
    want = list(itertools.chain.from_iterable(_slow_nll(loaded, prompt) for prompt in prompts))
    got = response_nll(loaded, prompts)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gemma2"])
def test_packed_prompts_agree_in_bfloat16(kind: str) -> None:
    loaded, prompts = loaded_model(kind, dtype=torch.bfloat16), _prompts()
    for prompt, got in zip(prompts, _split(response_nll(loaded, prompts), prompts), strict=True):
        want = np.mean(_slow_nll(loaded, prompt))
        assert abs(got.mean().item() - want) < 1e-2 * want


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", _PACKED)
def test_any_order_and_any_batch_give_the_same(kind: str, dtype: torch.dtype) -> None:
    loaded, prompts = loaded_model(kind, dtype=dtype), _prompts()
    alone = [response_nll(loaded, [prompt]) for prompt in prompts]
    order = [4, 0, 6, 2, 5, 1, 3][: len(prompts)] + list(range(7, len(prompts)))
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2  # of one token's NLL
    for size in (2, 3, len(prompts)):
        for begin in range(0, len(prompts), size):
            chosen = [prompts[index] for index in order[begin : begin + size]]
            got = _split(response_nll(loaded, chosen), chosen)
            for index, nll in zip(order[begin : begin + size], got, strict=True):
                assert (nll - alone[index]).norm() <= tolerance * alone[index].norm()


def _split(nll: torch.Tensor, prompts: list[Prompt]) -> list[torch.Tensor]:
    return list(nll.split([len(prompt.response) for prompt in prompts]))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    prompt = build_prompt(tokenizer(), samples()[0], max_length=4096)
    states = response_states(loaded, [prompt])
    whole = token_nll(loaded, states, prompt.response)
    seen: list[int] = []
    own = forward.head

    def watched(loaded, rows):
        seen.append(len(rows))
        return own(loaded, rows)

    monkeypatch.setattr(forward, "head", watched)
    monkeypatch.setitem(forward._LOGITS_PER_CHUNK, "cpu", 7 * 400)
    chunked = token_nll(loaded, states, prompt.response)
    assert max(seen) == 7 and sum(seen) == len(prompt.response)
    np.testing.assert_allclose(chunked, whole, rtol=1e-6)


def test_foreign_tokenizer_is_named_before_the_embedding_fails() -> None:
    loaded = loaded_model("llama")
    foreign = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer, bos_token="<s>")
    foreign.add_tokens(["lighthouse"])
    sample = dataclasses.replace(samples()[0], response="lighthouse")
    with refused("models.vocabulary", "400.*400"):
        response_states(loaded, [build_prompt(foreign, sample, max_length=4096)])


def test_on_the_cpu_it_is_there_at_once() -> None:
    copy = HostCopy(torch.tensor([1.0, 2.5], dtype=torch.float64))
    assert copy.ready
    assert copy.array.dtype == np.float64 and copy.array.tolist() == [1.0, 2.5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_it_waits_only_when_it_is_read() -> None:
    values = torch.arange(2**20, dtype=torch.float64, device="cuda")
    torch.cuda._sleep(200_000_000)
    copy = HostCopy(values)
    assert not copy.ready
    assert copy.array.tolist() == list(range(2**20))
    assert copy.ready
