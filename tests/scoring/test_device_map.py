"""A model whose layers accelerate has spread: its hooks sit where our pass is split, and the numbers stay the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from accelerate.hooks import ModelHook, add_hook_to_module

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.models import loading
from gateau_dagster.models.flops import Meter
from gateau_dagster.models.loading import LoadedModel, load_model
from gateau_dagster.scoring.scorer import Request, SampleOutcome, score_samples
from tests.error_codes import refused
from tests.tiny_models import loaded_model, samples, tokenizer


def outcomes(loaded: LoadedModel) -> list[SampleOutcome]:
    requests = [Request(sample=sample, perplexity=True, cam=True) for sample in samples()]
    scoring = ScoringConfig(dtype="float32", segment_length=16, batch_tokens=256)
    return list(score_samples(loaded, requests, max_length=256, scoring=scoring, meter=Meter()))


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_hooks_change_nothing(kind: str) -> None:
    expected = outcomes(loaded_model(kind))
    spread = loaded_model(kind)
    layers = [f"model.layers.{index}" for index in range(2)]
    places: dict[str, Any] = dict.fromkeys(
        ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", *layers), "cpu"
    )
    dispatch_model(spread.model, places, force_hooks=True)
    hooked = [name for name, module in spread.model.named_modules() if hasattr(module, "_hf_hook")]
    assert {"", "model.layers.1", "lm_head"} <= set(hooked), "accelerate is at work"
    # A hook on the body too, as offloading puts it there.
    add_hook_to_module(spread.model.base_model, ModelHook())
    assert outcomes(spread) == expected
    assert outcomes(spread) == expected, "the body's hook is put back after each use of the output layer"


def test_loading_with_a_device_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_model("llama").model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path))
    plain = load_model(config, dtype="float32", device="cpu", folder=tmp_path)
    original, asked = loading.AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        asked.append(options["device_map"])
        return original(*arguments, **options)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    found = load_model(config, dtype="float32", device="auto", folder=tmp_path, device_map="auto")
    assert asked == ["auto"]
    assert found.device == found.model.get_input_embeddings().weight.device
    if found.device.type == "cpu":
        assert outcomes(found) == outcomes(plain)


def test_a_model_that_the_gpus_together_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = loaded_model("llama").model
    spread.hf_device_map = {"model.embed_tokens": 0, "model.layers.0": "cpu"}  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refused("models.too_large", "2.*GPUs"):
        loading._spread_over_gpus(ModelConfig(path="big"), spread)
