"""Which models come to an end of their positions, and how far rotary ones are made for."""

from typing import Any

import pytest

from gateau_dagster.models.positions import learned_positions, rotary_positions
from tests.tiny_models import model_config


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
    from gateau_dagster.config.training_sections import PositionExtension
    from gateau_dagster.models.positions import full_attention_ropes
    from gateau_dagster.training.position_extension import extend_positions

    config, further = model_config(kind), model_config(kind)
    extend_positions(further, PositionExtension(method="ntk", target_length=50_000), name="x")
    theta = full_attention_ropes(further.rope_parameters)[0]["rope_theta"]
    assert rotary_positions(config, theta) == 50_000
    assert rotary_positions(config, theta / 1e9) == 2048
