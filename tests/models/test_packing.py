"""Packed rows: documents come out as alone, and models that would mix them are found out."""

from typing import Any

import pytest
import torch

from gateau_dagster.models import packing
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.packing import lone_states, packed_states, packs_documents
from tests.tiny_models import loaded_model


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
