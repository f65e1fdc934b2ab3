"""What a configuration, a class and a folder tell of a model before its weights are read."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from transformers import AutoConfig, PreTrainedModel

from gateau_dagster.config import Config, ModelConfig, ScoringConfig
from gateau_dagster.features.demo.pair import SHORT_WINDOW
from gateau_dagster.features.demo.prepare import embedded_demo, ensure_demo_data
from gateau_dagster.models.context_attention import attention_unseen, require_seen
from gateau_dagster.models.model_config import (
    attention_layers_of,
    class_of,
    learned_positions,
    override_rope_theta,
    prompt_tokens,
    rotary_positions,
    unseen_by_class,
    window_of,
)
from gateau_dagster.models.model_facts import facts_of, local_facts, short_window, visible_tokens
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, model_config


def test_one_base_per_kind_of_layer_changes_the_full_ones_only() -> None:
    config = model_config("gemma3_text")
    local = config.rope_parameters["sliding_attention"]["rope_theta"]
    override_rope_theta(config, 5e6, name="x")
    assert config.rope_parameters["full_attention"]["rope_theta"] == 5e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == local


def test_model_without_rotary_embedding_is_refused() -> None:
    with refused("models.no_rotary", "rope_theta.*gpt2"):
        override_rope_theta(model_config("gpt2"), 1e6, name="x")


def test_a_window_of_the_configuration_goes_before_the_checkpoint_s() -> None:
    config, scoring = model_config("llama"), ScoringConfig(max_length=512)
    for given, tokens in ((None, 512), (100, 100), (10_000, 512)):
        model = ModelConfig(path="x", context="window", window=given)
        assert prompt_tokens(config, model, scoring, window=window_of(config, model)) == tokens
    assert window_of(model_config("bloom"), ModelConfig(path="x")) is None
    with refused("models.window"):
        prompt_tokens(config, ModelConfig(path="x", context="window"), scoring, window=None)


@pytest.mark.parametrize(("kind", "most"), [("gpt2", 2048), ("llama", None), ("gemma2", None), ("mamba", None)])
def test_learned_positions_end_and_computed_ones_do_not(kind: str, most: int | None) -> None:
    assert learned_positions(model_config(kind)) == most


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


@pytest.mark.parametrize(
    ("kind", "changes", "positions"),
    [
        ("llama", {}, 2048),
        ("llama", scaled("linear", factor=4.0), 8192),
        ("llama", scaled("dynamic", factor=2.0), 4096),
        ("llama", scaled("yarn", factor=4.0), 8192),
        # The product is declared already.
        ("llama", scaled("yarn", factor=4.0, original_max_position_embeddings=512), 2048),
        ("llama", scaled("yarn", factor=8.0, original_max_position_embeddings=512), 4096),
        (
            "llama",
            scaled(
                "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128
            ),
            2048,
        ),
        ("mistral", {"sliding_window": 150}, None),
        ("qwen3", {"layer_types": ["indexed_attention"] * 2}, 2048),  # not known to be a window
        ("gemma2", {}, 2048),
        ("gemma3_text", {}, 2048),
        ("glm4", {}, 2048),
        ("gpt2", {}, None),
        ("bloom", {}, None),
        ("mamba", {}, None),
    ],
)
def test_positions_that_a_rotary_embedding_is_made_for(kind: str, changes: dict[str, Any], positions: int) -> None:
    assert rotary_positions(model_config(kind, **changes)) == positions


@pytest.mark.parametrize("kind", ["llama", "glm4", "gemma3_text"])
def test_a_raised_base_reaches_as_far_as_ntk_raises_it_for(kind: str) -> None:
    from gateau_dagster.config.models import PositionExtension
    from gateau_dagster.models.model_config import full_attention_ropes
    from gateau_dagster.training.position_extension import extend_positions

    config, further = model_config(kind), model_config(kind)
    extend_positions(further, PositionExtension(method="ntk", target_length=50_000), name="x")
    theta = full_attention_ropes(further.rope_parameters)[0]["rope_theta"]
    assert rotary_positions(config, theta) == 50_000
    assert rotary_positions(config, theta / 1e9) == 2048


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


def configured(folder: Path, model: dict[str, Any], content: dict[str, Any]) -> Config:
    (folder / "short").mkdir()
    (folder / "short" / "config.json").write_text(json.dumps(content))
    models = {"short": {"path": "short", **model}, "long": {"path": "long"}}
    sections = {"long_sft": {"path": "long.jsonl"}, "models": models, "scoring": {"max_length": 800}}
    return Config.model_validate({"folder": folder, **sections})


@pytest.mark.parametrize(
    ("model", "content", "visible"),
    [
        ({}, {"max_position_embeddings": 128}, None),
        ({"window": 64}, {"max_position_embeddings": 128}, None),  # context: full
        ({"context": "window"}, {"max_position_embeddings": 128}, 128),
        ({"context": "window"}, {"text_config": {"max_position_embeddings": 96}}, 96),
        ({"context": "window", "window": 64}, {"max_position_embeddings": 128}, 64),
        ({"context": "window"}, {"max_position_embeddings": 4096}, 800),
    ],
)
def test_visible_tokens(tmp_path: Path, model: dict[str, Any], content: dict[str, Any], visible: int | None) -> None:
    assert visible_tokens(configured(tmp_path, model, content)) == visible


def test_facts_are_read_once_for_each_state_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(tmp_path, {}, {"model_type": "llama", "max_position_embeddings": 64})
    first = local_facts(config, "short")
    assert first.config is not None and local_facts(config, "short") is first
    opens = Mock(wraps=AutoConfig.from_pretrained)
    monkeypatch.setattr(AutoConfig, "from_pretrained", opens)
    assert facts_of(config, "short").config is first.config and not opens.called
    (tmp_path / "short" / "config.json").write_text('{"model_type": "of no kind"}')
    changed = local_facts(config, "short")
    assert opens.call_count == 0 and changed.config is None
    assert "of no kind" in changed.failures["config.json"]
    assert changed.missing == "the config.json of short is not one that transformers can read"
    gone = local_facts(config, "long")
    assert (gone.folder, gone.config, gone.tokenizer, gone.window, gone.parameters) == (None,) * 5
    assert gone.missing == "long is not on this machine yet"


def test_a_failure_of_the_disk_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = local_facts(configured(tmp_path, {}, {"model_type": "llama"}), "short")
    with monkeypatch.context() as patch:
        patch.setattr(AutoConfig, "from_pretrained", Mock(side_effect=OSError("stale file handle")))
        assert facts.config is None and facts.failures == {"config.json": "OSError: stale file handle"}
    assert facts.config is not None and not facts.missing


def test_a_window_that_nothing_names(tmp_path: Path) -> None:
    config = configured(tmp_path, {"context": "window"}, {})
    assert short_window(config) is None
    with refused("models.window", r"models\.short\.window"):
        visible_tokens(config)


def test_the_demo_s_pair_is_known_before_it_is_built(tmp_path: Path) -> None:
    config = embedded_demo(tmp_path)
    ensure_demo_data(config)
    assert short_window(config) == (config.models["short"].window or SHORT_WINDOW)
