"""The base reaches the rotary embedding, and changes what the model says about far tokens."""

from pathlib import Path

import pytest
import torch

from gateau_dagster.config import ModelConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.loading import LoadedModel, load_model, override_rope_theta
from tests.scoring.builders import loaded_model, model_config, tokenizer


def _load(folder: Path, theta: float | None) -> LoadedModel:
    return load_model(ModelConfig(path=str(folder), rope_theta=theta), dtype="float32", device="cpu", folder=Path())


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_override_changes_the_frequencies_and_the_logits(kind: str, tmp_path: Path) -> None:
    loaded_model(kind).model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    plain, changed = _load(tmp_path, None), _load(tmp_path, 2_000_000)
    frequencies = changed.model.get_buffer("model.rotary_emb.inv_freq")
    torch.testing.assert_close(frequencies, 2_000_000 ** -(torch.arange(0, 16, 2) / 16))  # θ^(-2i/d)
    assert not torch.equal(frequencies, plain.model.get_buffer("model.rotary_emb.inv_freq"))
    ids = torch.randint(0, 400, (1, 200), generator=torch.Generator().manual_seed(0))
    far = (plain.model(ids).logits - changed.model(ids).logits).abs().amax(dim=-1)[0]
    assert far[0] < 1e-4 and far[150:].min() > 1e-2  # position 0 is not rotated
    assert plain.window == changed.window == 2048


def test_override_keeps_a_scaling_rule(tmp_path: Path) -> None:
    rule = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    loaded_model("llama", rope_parameters=rule).model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    changed = _load(tmp_path, 500_000)
    want = 500_000 ** -(torch.arange(0, 16, 2) / 16) / 4
    torch.testing.assert_close(changed.model.get_buffer("model.rotary_emb.inv_freq"), want)


def test_one_base_per_kind_of_layer_changes_the_full_ones_only() -> None:
    config = model_config("gemma3_text")
    local = config.rope_parameters["sliding_attention"]["rope_theta"]
    override_rope_theta(config, 5e6, name="x")
    assert config.rope_parameters["full_attention"]["rope_theta"] == 5e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == local


def test_model_without_rotary_embedding_is_refused() -> None:
    with pytest.raises(GateauError, match="rope_theta is set, but gpt2 has no rotary embedding: remove the key"):
        override_rope_theta(model_config("gpt2"), 1e6, name="x")
