"""Passes and NLL against each prompt alone and the model's own logits, whatever is packed together."""

import dataclasses
import itertools
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from gateau_dagster.models import forward, packing
from gateau_dagster.models.forward import HostCopy, response_nll, response_states, token_nll
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.packing import lone_states, packed_states, packs_documents
from gateau_dagster.models.probe import body_of
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from gateau_dagster.scoring.scorer import compile_layers
from gateau_dagster.scoring.segments import segment_prompts
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples, tokenizer
from tests.scoring.builders import check, outcomes, reference_model, references, scoring

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


@pytest.mark.cuda
def test_on_a_gpu_it_waits_only_when_it_is_read() -> None:
    values = torch.arange(2**20, dtype=torch.float64, device="cuda")
    torch.cuda._sleep(200_000_000)
    copy = HostCopy(values)
    assert not copy.ready
    assert copy.array.tolist() == list(range(2**20))
    assert copy.ready


def _documents(*lengths: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randint(0, 400, (length,), generator=generator).tolist()) for length in lengths]


@pytest.mark.parametrize("lengths", [(9,), (200, 200), (7, 200, 60, 200, 1)])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text", "gpt_oss", "gpt2"])
def test_documents_come_out_as_alone(kind: str, lengths: tuple[int, ...]) -> None:
    loaded, documents = loaded_model(kind), _documents(*lengths)
    states, starts = packed_states(loaded, documents)
    assert states.shape[0] == sum(lengths)
    for start, document in zip(starts, documents, strict=True):
        got = states[start : start + len(document)]
        torch.testing.assert_close(got, lone_states(loaded, document), rtol=1e-4, atol=1e-4)


def test_documents_of_one_length_stand_side_by_side() -> None:
    _, starts = packed_states(loaded_model("llama"), _documents(3, 9, 3, 9))
    assert starts == [18, 0, 21, 9]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "mixtral", "gpt2", "gemma2", "gpt_oss", "opt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoders_on_the_interface_are_packed(kind: str, dtype: torch.dtype) -> None:
    changes: dict[str, Any] = {"ffn_dim": 96, "word_embed_proj_dim": 64} if kind == "opt" else {}
    assert packs_documents(loaded_model(kind, dtype=dtype, **changes))


@pytest.mark.parametrize("kind", ["bloom", "mpt", "mamba"])
def test_models_not_on_the_interface_are_not(kind: str) -> None:
    assert not packs_documents(loaded_model(kind))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_that_crosses_the_boundary_is_found_out(dtype: torch.dtype) -> None:
    # A convolution reads the last tokens of the document before.
    assert not packs_documents(loaded_model("lfm2", dtype=dtype, layer_types=["conv", "full_attention"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_that_are_not_heeded_are_found_out(dtype: torch.dtype) -> None:
    def from_the_row(loaded: LoadedModel) -> None:
        own = loaded.model.base_model.forward
        loaded.model.base_model.forward = lambda position_ids=None, **kwargs: own(**kwargs)

    loaded = loaded_model("gpt2", dtype=dtype)
    from_the_row(loaded)
    assert not packs_documents(loaded)


def test_attention_that_cannot_be_replaced_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    monkeypatch.setattr(type(loaded.model), "_can_set_attn_implementation", classmethod(lambda _: False))
    assert not packs_documents(loaded)


def test_model_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    assert packs_documents(loaded)
    monkeypatch.setattr(packing, "_probe", None)
    assert packs_documents(loaded)


def _replace_compiler(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    own = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: own(function, dynamic=dynamic, backend=backend))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_compiled_perplexities_agree_with_the_reference() -> None:
    loaded, chosen = loaded_model("llama"), samples()[:3]
    wanted = references(loaded, scoring(), 4096, chosen)
    for outcome, want in zip(outcomes(loaded, chosen, cam=False, compile=True), wanted, strict=True):
        assert isinstance(outcome.perplexity, PerplexityRow)
        assert outcome.perplexity.perplexity == pytest.approx(want.perplexity, rel=1e-4)


@pytest.mark.long
def test_traced_for_any_length_all_figures_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    _replace_compiler(monkeypatch, backend)
    loaded, chosen = loaded_model("llama"), samples()
    wanted = references(loaded, scoring(), 4096, chosen)
    made: list[int] = []
    for some, tokens in ((3, 600), (5, 900)):
        for sample, outcome, want in zip(
            chosen, outcomes(loaded, chosen[:some], compile=True, batch_tokens=tokens), wanted, strict=False
        ):
            check(sample, outcome, want)
        made.append(len(graphs))
    assert 0 < made[0] <= 12 and made[1] == made[0], "other lengths need no other graphs"


def test_a_model_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compile_(function: Any, **options: Any) -> Any:
        calls.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    loaded = loaded_model("llama")
    want = outcomes(loaded, samples()[:1])
    for _ in range(2):
        assert outcomes(loaded, samples()[:1], compile=True) == want
    assert calls == [{"dynamic": True}]  # of its two layers, the last one computes some rows only


def test_a_compiler_that_fails_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(*_: Any) -> Any:
        raise RuntimeError("no compiler found\nmore")

    _replace_compiler(monkeypatch, backend)
    loaded = loaded_model("llama")
    compile_layers(loaded)
    with refused("scoring.compile", r"scoring\.compile"):
        outcomes(loaded, samples()[:1])


_KINDS = {
    "llama": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 96, "attention_chunk_size": 40},
}


@pytest.mark.parametrize("kind", _KINDS)
def test_scores_are_those_of_the_whole_model(kind: str) -> None:
    loaded = loaded_model(kind, **_KINDS[kind])
    called = []
    handle = body_of(loaded.model).register_forward_hook(lambda *_: called.append(True))
    prompts = [build_prompt(tokenizer(), one, max_length=300) for one in samples()[:2]]
    plain = []
    with torch.no_grad():
        for prompt in prompts:
            logits = loaded.model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0]
            first = prompt.response_span[0]
            plain.append(cross_entropy(logits[first - 1 : -1], torch.tensor(prompt.response), reduction="none"))
    handle.remove()
    assert len(called) == 2 and packs_documents(loaded)
    torch.testing.assert_close(response_nll(loaded, prompts), torch.cat(plain).double(), rtol=1e-4, atol=1e-4)
