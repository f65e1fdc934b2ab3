"""Loading from a folder, its rotary base replaced if asked for; one readable message for each way in which it fails."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM, CpmAntConfig

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models import loading
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from tests.error_codes import refused
from tests.tiny_models import loaded_model, tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama in `models/tiny`."""
    folder = tmp_path_factory.mktemp("saved")
    loaded_model("llama", max_position_embeddings=256).model.save_pretrained(folder / "models" / "tiny")
    tokenizer().save_pretrained(folder / "models" / "tiny")
    return folder


@pytest.fixture
def tiny(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved / "models" / "tiny", tmp_path / "tiny"))


def _load(path: str | Path, folder: Path = Path(), dtype: Any = "float32", **changes: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(path), **changes), dtype=dtype, device="cpu", folder=folder)


def test_folder_is_relative_to_the_configuration_file(saved: Path) -> None:
    loaded = _load("models/tiny", saved)
    assert loaded.name == "models/tiny" and loaded.device == torch.device("cpu") and loaded.window == 256
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.dtype == torch.float32 and loaded.tokenizer.bos_token_id == 0
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded.model(ids).logits, loaded_model("llama").model(ids).logits)


def test_dtype_and_window_are_the_configurations(saved: Path) -> None:
    loaded = _load("models/tiny", saved, dtype="bfloat16", window=64)
    assert loaded.model.dtype == torch.bfloat16 and loaded.window == 64


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./nowhere", "nowhere does not exist"),
        ("/nowhere/at all", "/nowhere/at all does not exist"),
        ("a/b/c", "a/b/c does not exist"),
        ("models", "not a model folder: it has no config.json"),
        ("models/tiny/config.json", "is a file"),
    ],
)
def test_wrong_paths_are_named(saved: Path, path: str, message: str) -> None:
    with pytest.raises(GateauError, match=message):
        _load(path, saved)


def test_hub_out_of_reach(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub.unavailable", "some/model.*v2.*HF_TOKEN"):
        _load("some/model", saved, revision="v2")


def test_broken_config_json(tiny: Path) -> None:
    (tiny / "config.json").write_text("{")
    with refused("models.file_damaged", r"config\.json"):
        _load(tiny)
    (tiny / "config.json").write_text(json.dumps({"model_type": "no_such_model"}))
    with refused("models.file_damaged", "no_such_model"):
        _load(tiny)


def test_no_tokenizer(tiny: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / name).unlink()
    with refused("models.no_tokenizer", r"tokenizer\.json"):
        _load(tiny)


def test_broken_tokenizer(tiny: Path) -> None:
    (tiny / "tokenizer_config.json").write_text("{")
    with refused("models.not_loadable"):
        _load(tiny)


def test_model_that_is_no_decoder(tmp_path: Path) -> None:
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=400
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with refused("models.not_causal", "BertForMaskedLM"):
        _load(tmp_path)


_SIZES: dict[str, Any] = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_BERT: dict[str, Any] = {**_SIZES, "intermediate_size": 16}
_CPM: dict[str, Any] = {**_SIZES, "dim_head": 8, "dim_ff": 16}


@pytest.mark.parametrize("config", [BertConfig(**_BERT), CpmAntConfig(**_CPM)], ids=lambda config: config.model_type)
def test_decoder_that_sees_what_follows(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config.init_std = config.initializer_range = 0.15
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with refused("models.not_causal", f"{config.model_type}.*Llama"):
        _load(tmp_path)
    if config.model_type == "bert":
        content = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(content | {"is_decoder": True}))
        assert _load(tmp_path).model.config.is_decoder


def test_missing_weights_file(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    with refused("models.not_loadable"):
        _load(tiny)


def test_truncated_weights_file(tiny: Path) -> None:
    data = (tiny / "model.safetensors").read_bytes()
    (tiny / "model.safetensors").write_bytes(data[: len(data) // 2])
    with refused("models.not_loadable"):
        _load(tiny)


def test_pickled_weights_are_not_opened(tiny: Path) -> None:
    torch.save(load_file(tiny / "model.safetensors"), tiny / "pytorch_model.bin")
    (tiny / "model.safetensors").unlink()
    with refused("models.not_loadable", r"\.bin"):
        _load(tiny)


def test_missing_tensor_is_not_filled_with_random_numbers(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    with refused("models.incomplete", r"model\.layers\.1\.mlp\.up_proj\.weight"):
        _load(tiny)


def test_out_of_memory_while_loading(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12 GiB")

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", full)
    with refused("models.too_large", r"scoring\.dtype.*bfloat16"):
        _load(tiny)


def test_effective_max_length() -> None:
    loaded, scoring = loaded_model("llama"), ScoringConfig(max_length=5000)
    assert effective_max_length(loaded, ModelConfig(path="x"), scoring) == 5000
    assert effective_max_length(loaded, ModelConfig(path="x", context="window"), scoring) == 2048
    short = ScoringConfig(max_length=100)
    assert effective_max_length(loaded, ModelConfig(path="x", context="window"), short) == 100


def test_learned_positions_are_not_read_beyond_their_table() -> None:
    loaded = loaded_model("gpt2")
    with refused("models.positions", r"2048.*scoring\.max_length.*4096"):
        effective_max_length(loaded, ModelConfig(path="x"), ScoringConfig(max_length=4096))
    assert effective_max_length(loaded, ModelConfig(path="x"), ScoringConfig(max_length=2048)) == 2048
    wide = ModelConfig(path="x", context="window", window=4096)
    loaded = replace(loaded, window=4096)
    with refused("models.positions", "4096.*2048"):
        effective_max_length(loaded, wide, ScoringConfig(max_length=8192))
    assert effective_max_length(loaded, wide, ScoringConfig(max_length=1000)) == 1000


def test_window_must_be_known_when_it_is_used(tmp_path: Path) -> None:
    loaded_model("bloom").model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert _load(tmp_path).window is None
    with refused("models.window"):
        _load(tmp_path, context="window")
    assert _load(tmp_path, context="window", window=99).window == 99


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_override_changes_the_frequencies_and_the_logits(kind: str, tmp_path: Path) -> None:
    loaded_model(kind).model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    plain, changed = _load(tmp_path), _load(tmp_path, rope_theta=2_000_000)
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
    changed = _load(tmp_path, rope_theta=500_000)
    want = 500_000 ** -(torch.arange(0, 16, 2) / 16) / 4
    torch.testing.assert_close(changed.model.get_buffer("model.rotary_emb.inv_freq"), want)
