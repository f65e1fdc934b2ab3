"""Loading a reward model or an encoder, and one readable message for every way in which it fails."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5Model

from gateau_dagster.models.model_config import Label, check_architecture, label_index
from tests.error_codes import refused
from tests.tiny_models import encoder, loaded_model, save_encoder, tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`reward` and `embedding`, tiny BERTs."""
    folder = tmp_path_factory.mktemp("encoders")
    save_encoder(folder / "reward", "bert", "reward")
    save_encoder(folder / "embedding", "bert", "embedding")
    return folder


def test_a_reward_model_and_an_encoder_are_ready_to_read(folders: Path) -> None:
    for task in ("reward", "embedding"):
        loaded = encoder(folders / task, task)
        assert loaded.device == torch.device("cpu") and loaded.window == 128 and loaded.model.dtype == torch.float32
        assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())


def test_the_window_is_the_smallest_limit(folders: Path, tmp_path: Path) -> None:
    assert encoder(folders / "embedding", "embedding", window=50).window == 50
    assert encoder(folders / "embedding", "embedding", window=500).window == 128, "there are no further positions"
    roberta = save_encoder(tmp_path / "roberta", "roberta", "embedding", pad_token_id=3)
    assert encoder(roberta, "embedding").window == 128 - 4, "positions begin behind the padding's"
    limited = tokenizer().__class__.from_pretrained(roberta, model_max_length=60)
    limited.save_pretrained(roberta)
    assert encoder(roberta, "embedding").window == 60
    assert encoder(save_encoder(tmp_path / "llama", "llama", "embedding"), "embedding").window == 2048


def test_a_model_without_the_head_is_no_reward_model(folders: Path, tmp_path: Path) -> None:
    with refused("models.reward", "BertModel"):
        encoder(folders / "embedding", "reward")
    loaded_model("llama").model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with refused("models.reward", "LlamaForCausalLM"):
        encoder(tmp_path, "reward")


def test_a_head_that_was_not_saved_is_not_filled_with_random_numbers(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "reward", tmp_path / "reward"))
    weights = {name: one for name, one in load_file(folder / "model.safetensors").items() if "classifier" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("models.incomplete", r"classifier\.bias.*classifier\.weight"):
        encoder(folder, "reward")


def test_an_encoder_may_lack_its_pooler_and_nothing_else(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "embedding", tmp_path / "embedding"))
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if not name.startswith("pooler.")}
    assert len(kept) == len(weights) - 2
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    encoder(folder, "embedding")
    del kept["encoder.layer.1.output.dense.weight"]
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("models.incomplete", r"encoder\.layer\.1\.output\.dense\.weight"):
        encoder(folder, "embedding")


def test_what_cannot_be_loaded_is_said(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("models.no_folder", "/nowhere/at"):
        encoder(Path("/nowhere/at all"), "embedding")
    folder = Path(shutil.copytree(folders / "embedding", tmp_path / "broken"))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with refused("models.no_tokenizer"):
        encoder(folder, "embedding")
    (folder / "config.json").write_text("{")
    with refused("models.file_damaged", r"config\.json"):
        encoder(folder, "embedding")
    (folders / "embedding" / "model.safetensors").rename(tmp_path / "weights")
    with refused("models.not_loadable"):
        encoder(folders / "embedding", "embedding")
    (tmp_path / "weights").rename(folders / "embedding" / "model.safetensors")
    with refused("models.no_rotary"):
        encoder(folders / "embedding", "embedding", rope_theta=100.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub.unavailable", "some/model.*v2.*HF_TOKEN"):
        encoder(Path("some/model"), "reward", revision="v2")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with refused("models.task", "t5"):
        encoder(tmp_path, "embedding")


ONE = {0: "LABEL_0"}
TWO = {0: "bad", 1: "good"}


@pytest.mark.parametrize(
    ("architectures", "message"),
    [
        (["BertModel"], "x is a BertModel, which does not rate texts: with task reward, give a model saved as"),
        (["LlamaForCausalLM"], "x is a LlamaForCausalLM, which does not rate texts"),
        ([], "x is a model of unknown architecture, which does not rate texts"),
    ],
)
def test_a_wrong_head_is_named(architectures: list[str], message: str) -> None:
    with refused("models.reward", message):
        check_architecture(architectures, name="x")
    check_architecture([*architectures, "BertForSequenceClassification"], name="x")


@pytest.mark.parametrize(
    ("labels", "label", "message"),
    [
        (TWO, None, r"2 outputs, 0 \(bad\), 1 \(good\), but a reward model has one: .*options\.car\.label, or use"),
        (TWO, "fair", r"x has no output 'fair' for selection\.options\.car\.label; it has 0 \(bad\), 1 \(good\)"),
        (TWO, 2, "x has no output 2"),
        (ONE, "good", r"x has no output 'good'.*it has 0 \(LABEL_0\)"),
        ({0: "good", 1: "good"}, "good", "no output 'good'"),
    ],
)
def test_an_output_that_is_none_is_named(labels: dict[int, str], label: Label | None, message: str) -> None:
    with refused("models.reward", message):
        label_index(labels, label, name="x")


@pytest.mark.parametrize(("labels", "label", "index"), [(ONE, None, 0), (ONE, 0, 0), (TWO, 1, 1), (TWO, "good", 1)])
def test_the_output_is_found_by_name_and_number(labels: dict[Any, str], label: Label | None, index: int) -> None:
    assert label_index(labels, label, name="x") == index
    assert label_index({str(number): text for number, text in labels.items()}, label, name="x") == index
