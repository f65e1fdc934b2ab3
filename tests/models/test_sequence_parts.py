"""Which models compute a part of a sequence as in the whole, where attention alone sees all of it."""

import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from gateau_dagster.models.sequence_parts import parts_differ
from tests.tiny_models import model_config


def make(kind: str, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=torch.float32)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral", "cohere", "granite", "ministral3"])
def test_parts_that_come_out_as_in_the_whole(kind: str) -> None:
    model = make(kind).train()
    assert parts_differ(model) is None
    assert model.config._attn_implementation == "sdpa" and model.training


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("llama4_text", {"layer_types": ["full_attention"] * 2}, "counts tokens from the begin of each part"),
        ("stablelm", {}, "does not use transformers' attention interface"),
        ("nemotron", {}, "does not tell its attention .* positions"),
        ("gpt_oss", {}, "not plainly causal"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "a part of a sequence comes out otherwise"),
        ("opt", {}, "heads are not those that its configuration names"),
    ],
)
def test_what_would_be_wrong(kind: str, changes: dict[str, Any], reason: str) -> None:
    model = make(kind, **changes)
    own = model.config._attn_implementation
    found = parts_differ(model)
    assert found is not None and re.search(reason, found), found
    assert model.config._attn_implementation == own


def test_positions_that_a_model_makes_up_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    rotary = model.model.rotary_emb.forward  # pyright: ignore

    def from_zero(states: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return rotary(states, torch.arange(position_ids.shape[1])[None])

    monkeypatch.setattr(model.model.rotary_emb, "forward", from_zero)  # pyright: ignore
    assert parts_differ(model) == "a part of a sequence comes out otherwise than in the whole"
