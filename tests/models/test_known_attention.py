"""What a class and a configuration tell of attention weights, and what a trial on a few tokens does."""

import pytest
from transformers import PreTrainedModel

from gateau_dagster.models.context_attention import attention_unseen, require_attention_interface, require_seen
from gateau_dagster.models.known_attention import attention_layers_of, class_of, unseen_by_class
from tests.error_codes import refused
from tests.tiny_models import loaded_model, model_config

NEXT = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("diffllama", "it called the interface 4 times for 2 layers"),
        ("doge", "its code works on the numbers of its mask itself"),
    ],
)
def test_reason_is_told_once_and_in_words(kind: str, reason: str) -> None:
    loaded = loaded_model(kind)
    assert attention_unseen(loaded) == reason
    with refused("models.no_attention") as failure:
        require_seen(loaded)
    assert str(failure.value).count("needs a decoder") == 1 and reason in str(failure.value)


@pytest.mark.parametrize(("kind", "options", "layers"), [("llama", {}, 2), ("qwen3_next", NEXT, 1), ("mamba", {}, 0)])
def test_class_and_layers(kind: str, options: dict, layers: int) -> None:
    config = model_config(kind, **options)
    found = class_of(config)
    assert found is not None and issubclass(found, PreTrainedModel)
    assert (unseen_by_class(found, config) is None) == (kind == "llama")
    assert attention_layers_of(config) == layers or kind == "mamba"


def test_trial_says_why_and_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_unseen(loaded_model("gemma3_text")) is None
    loaded, tried = loaded_model("llama"), []

    def broken(*_: object) -> None:
        tried.append(True)
        raise TypeError("an argument too many")

    monkeypatch.setattr("gateau_dagster.models.context_attention.packed_states", broken)
    for _ in range(2):
        reason = attention_unseen(loaded)
        assert reason is not None and "TypeError: an argument too many" in reason
    assert len(tried) == 1


def test_refusal_names_class_and_cure() -> None:
    with refused("models.no_attention", r"MambaForCausalLM.*selection\.preset"):
        require_attention_interface(loaded_model("mamba"))
