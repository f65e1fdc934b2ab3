"""The last layer and the output layer for some rows: the model's own figures, and the model left as it was."""

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, ProphetNetConfig

from gateau_dagster.models import packing
from gateau_dagster.models.context_attention import context_attention
from gateau_dagster.models.forward import response_nll, response_states
from gateau_dagster.models.last_layers import ReadRows, decoder_layers, head
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.packing import narrows_last_layer, packs_documents
from gateau_dagster.models.prompt import Prompt, build_prompt
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples, tokenizer

# What each layer's queries and feed-forward part are called; in GPT-2 one matrix makes queries, keys and values.
_PARTS = {
    "llama": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "qwen3": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "mixtral": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "gemma2": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "gemma3_text": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "gpt_oss": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "mistral": ("self_attn.q_proj", "self_attn.o_proj", "mlp"),
    "gpt2": ("attn.c_proj", "mlp"),
}


def _model(kind: str) -> LoadedModel:
    """In float64, where rounding is far below any tolerance."""
    return loaded_model(kind, dtype=torch.float64)


def _prompts() -> list[Prompt]:
    """Return prompts of three lengths, two alike, with responses of 7, 20, 7 and 1 tokens."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for length, response in ((60, 7), (200, 20), (60, 7), (9, 1)):
        ids = torch.randint(0, 400, (length,), generator=generator).tolist()
        end = length - response
        found.append(
            Prompt(prefix=tuple(ids[:2]), context=tuple(ids[2 : end - 3]), suffix=tuple(ids[end - 3 : end]),
                   response=tuple(ids[end:]))
        )  # fmt: skip
    return found


def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pass compute every row."""
    for module in ("context_attention", "forward"):
        monkeypatch.setattr(f"gateau_dagster.models.{module}.narrows_last_layer", lambda _: False)


def _rows_seen(loaded: LoadedModel, kind: str, run: Callable[[], object]) -> list[list[int]]:
    """Rows that each part of each layer gets while `run` runs."""
    seen: list[list[int]] = []
    handles = []
    for layer in decoder_layers(loaded):
        for name in _PARTS[kind]:
            rows: list[int] = []
            seen.append(rows)
            # A function around the part's own, since other hooks change what a hook is given.
            own = (part := layer.get_submodule(name)).forward

            def watched(states: Tensor, *rest: Any, own: Any = own, rows: list[int] = rows) -> Any:
                rows.append(states.shape[-2])
                return own(states, *rest)

            part.forward = watched  # pyright: ignore[reportAttributeAccessIssue]
            handles.append(part)
    run()
    for part in handles:
        del part.forward
    return seen


@pytest.mark.parametrize("kind", list(_PARTS))
def test_only_the_rows_that_are_read_reach_the_last_layer(kind: str) -> None:
    loaded, prompts = _model(kind), _prompts()
    assert packs_documents(loaded) and narrows_last_layer(loaded)
    parts, tokens = len(_PARTS[kind]), sum(prompt.length for prompt in prompts)
    seen = _rows_seen(loaded, kind, lambda: response_nll(loaded, prompts))
    assert seen == [[tokens]] * parts + [[7 + 20 + 7 + 1]] * parts
    seen = _rows_seen(loaded, kind, lambda: context_attention(loaded, prompts[1]))
    assert seen == [[200]] * parts + [[20 + 1]] * parts
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in loaded.model.modules())


@pytest.mark.parametrize("kind", list(_PARTS))
def test_the_figures_are_those_of_all_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, prompts = _model(kind), _prompts()
    nll, found = response_nll(loaded, prompts), context_attention(loaded, prompts[1])
    _whole(monkeypatch)
    torch.testing.assert_close(nll, response_nll(loaded, prompts), rtol=1e-9, atol=0)
    whole = context_attention(loaded, prompts[1])
    torch.testing.assert_close(found.attention, whole.attention, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.states, whole.states, rtol=1e-9, atol=1e-12)


class _Part(torch.nn.Module):
    """A feed-forward part around a model's own."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part


class _Flat(_Part):
    """One whose output has no batch, as that of the experts of some models; the layer puts it back."""

    def forward(self, states: Tensor) -> Tensor:
        return self.part(states)[0]


def test_a_part_that_gives_rows_without_a_batch() -> None:
    loaded, prompts = _model("llama"), _prompts()
    want = response_nll(_model("llama"), prompts)
    layer = decoder_layers(loaded)[-1]
    layer.mlp = _Flat(layer.mlp)  # pyright: ignore[reportArgumentType]
    assert narrows_last_layer(loaded)
    torch.testing.assert_close(response_nll(loaded, prompts), want, rtol=1e-9, atol=0)


class _Mixing(_Part):
    """One that looks at all rows it gets."""

    def forward(self, states: Tensor) -> Tensor:
        return self.part(states) * (1 + 0.1 * states.shape[-2])


class _Particular(_Part):
    """One that breaks on fewer rows than the model has."""

    def forward(self, states: Tensor) -> Tensor:
        if states.shape[-2] % 6:
            raise RuntimeError("shapes cannot be multiplied")
        return self.part(states)


@pytest.mark.parametrize("kind", [_Mixing, _Particular])
def test_a_last_layer_that_needs_all_rows_gets_them(kind: type[_Part], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _model("llama")
    layer = decoder_layers(loaded)[-1]
    layer.mlp = kind(layer.mlp)  # pyright: ignore[reportArgumentType]
    assert not narrows_last_layer(loaded)
    prompts = [_prompts()[0]] * 2
    got = response_nll(loaded, prompts)
    _whole(monkeypatch)
    torch.testing.assert_close(got, response_nll(loaded, prompts), rtol=0, atol=0)


def test_layers_whose_parts_are_not_known_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("opt", ffn_dim=96, word_embed_proj_dim=64)
    assert packs_documents(loaded) and not narrows_last_layer(loaded)
    got = response_states(loaded, _prompts())
    _whole(monkeypatch)
    torch.testing.assert_close(got, response_states(loaded, _prompts()), rtol=0, atol=0)


def test_layers_that_are_not_found_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, prompts = _model("llama"), _prompts()
    want = response_nll(_model("llama"), prompts)
    layers = loaded.model.model.layers
    loaded.model.model.layers = _NotAList(layers)
    assert list(decoder_layers(loaded)) == [] and not narrows_last_layer(loaded)
    torch.testing.assert_close(response_nll(loaded, prompts), want, rtol=1e-9, atol=0)


class _NotAList(torch.nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        for index, layer in enumerate(layers):
            self.add_module(str(index), layer)

    def __iter__(self) -> Any:
        return iter(self.children())

    def __getitem__(self, index: Any) -> Any:
        return list(self.children())[index]


def test_short_of_memory_says_nothing_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _model("llama")
    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(packing, "packed_states", mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory.")))
        narrows_last_layer(loaded)
    assert narrows_last_layer(loaded)


def test_a_pass_that_fails_leaves_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _model("llama")
    assert narrows_last_layer(loaded)
    own = loaded.model.config._attn_implementation
    broken = mock.Mock(side_effect=RuntimeError("no kernel"))
    monkeypatch.setattr("gateau_dagster.models.packing.attend_documents", broken)
    with pytest.raises(RuntimeError, match="no kernel"):
        response_nll(loaded, _prompts())
    assert loaded.model.config._attn_implementation == own
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in loaded.model.modules())


def test_places_are_copied_to_a_device_once() -> None:
    row, rows = packing._Row(lengths=(5, 3), observe=None), ReadRows(lengths=(5, 3), spans=((1, 3), (0, 1)), layer=1)
    device = torch.device("cpu")
    assert row.cu_seq_lens((5, 3), device) is row.cu_seq_lens((5, 3), device)
    assert rows.index(device) is rows.index(device)
    assert rows.pays and not ReadRows(lengths=(2,), spans=((0, 2),), layer=0).pays


# Gemma caps its logits, Granite and Cohere scale them: a bare lm_head would be wrong for these.
_SCALED: dict[str, dict[str, Any]] = {"gemma2": {"final_logit_softcapping": 0.5}, "granite": {"logits_scaling": 9.0}}
_KINDS = ["llama", "gpt2", "gemma2", "gemma3_text", "granite", "cohere", "mixtral", "gpt_oss", "bloom", "mpt", "mamba"]


@pytest.mark.parametrize("kind", _KINDS)
def test_head_gives_the_models_own_logits(kind: str) -> None:
    loaded = loaded_model(kind, **_SCALED.get(kind, {}))
    prompt = build_prompt(tokenizer(), samples()[0], max_length=150)
    start, stop = prompt.response_span
    want = loaded.model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0, start - 1 : stop - 1]
    got = head(loaded, response_states(loaded, [prompt]))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert "forward" not in vars(loaded.model.base_model)


def test_forward_of_an_offloaded_backbone_is_put_back() -> None:
    loaded = loaded_model("llama")
    backbone: Any = loaded.model.base_model
    hooked = backbone.forward
    backbone.forward = hooked  # as accelerate's hooks do
    head(loaded, torch.zeros(3, 64))
    assert vars(backbone)["forward"] is hooked


def test_model_that_wants_more_of_its_backbone_is_refused() -> None:
    parts = ("encoder", "decoder")
    shape: dict[str, Any] = {
        f"num_{part}_{name}": size for part in parts for name, size in (("layers", 1), ("attention_heads", 4))
    }
    config = ProphetNetConfig(vocab_size=400, hidden_size=64, encoder_ffn_dim=96, decoder_ffn_dim=96, **shape)
    model = AutoModelForCausalLM.from_config(config).eval()
    with refused("models.architecture"):
        head(dataclasses.replace(loaded_model("llama"), model=model), torch.zeros(3, 64))


def test_model_that_does_not_call_its_backbone_is_refused() -> None:
    loaded = loaded_model("llama")
    body: Any = loaded.model.base_model
    output = type("Output", (), {"logits": torch.zeros(1, 3, 400)})()
    loaded.model.forward = lambda **_: output  # pyright: ignore
    with refused("models.architecture"):
        head(loaded, torch.zeros(3, 64))
    with refused("models.architecture"):
        head(dataclasses.replace(loaded, model=body), torch.zeros(3, 64))
