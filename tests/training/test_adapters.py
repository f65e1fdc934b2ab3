"""Adapters: frozen weights, no change at first, and peft's own merge as the twin of ours."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel

from gateau_dagster.config.training import LoraConfig
from gateau_dagster.training.model import adapted_base, check_adapters, merged_state, with_adapters
from gateau_dagster.training.train import train
from tests.kit.error_codes import refused
from tests.training.builders import make_spec, run, save_model, weights_differ

IDS = torch.arange(5, 25)[None]


@pytest.fixture
def base(tmp_path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(save_model(tmp_path / "base"))


def random_up(model: torch.nn.Module) -> None:
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)


def test_nothing_changes_at_first_and_only_adapters_train(base: PreTrainedModel) -> None:
    before = base(IDS).logits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted = with_adapters(base, LoraConfig(rank=4), seed=1)
    assert torch.equal(adapted(IDS).logits, before)
    assert {"lora_A", "lora_B"} == {
        name.split(".")[-3] for name, weight in adapted.named_parameters() if weight.requires_grad
    }


@pytest.mark.parametrize("modules", ["all-linear", ["q_proj", "v_proj"]])
def test_merged_weights_are_those_of_peft(base: PreTrainedModel, modules: list[str]) -> None:
    names = set(base.state_dict())
    adapted = with_adapters(base, LoraConfig(rank=4, alpha=6, modules=modules), seed=1)
    random_up(adapted)
    logits = adapted(IDS).logits
    found = merged_state(adapted)
    assert set(found) == names
    twin = copy.deepcopy(adapted).merge_and_unload().state_dict()
    assert all(torch.allclose(found[name], twin[name], atol=1e-6, rtol=0) for name in names)
    plain = type(base)(adapted_base(adapted).config)
    plain.load_state_dict(found)
    assert torch.allclose(plain.eval()(IDS).logits, logits, atol=1e-5)


def test_layers_that_store_their_weight_transposed() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    adapted = with_adapters(model, LoraConfig(rank=2, modules=["c_attn"]), seed=1)
    random_up(adapted)
    twin = copy.deepcopy(adapted).merge_and_unload().state_dict()
    found = merged_state(adapted)
    assert all(torch.allclose(found[name], twin[name], atol=1e-6, rtol=0) for name in twin)


def test_a_layer_that_is_not_there(base: PreTrainedModel) -> None:
    with refused("training.lora", r"training\.lora\.modules.*\['nowhere'\]"):
        with_adapters(base, LoraConfig(modules=["nowhere"]), seed=1)


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["nowhere"], "'nowhere' does not fit this model .no layer has this name"),
        (["q_proj", "qproj"], "'qproj' does not fit"),
        (["mlp"], r"model\.layers\.0\.mlp is a LlamaMLP.*q_proj"),
        (["proj"], "no layer has this name"),
    ],
)
def test_a_name_that_fits_no_layer_is_refused_without_weights(
    base: PreTrainedModel, modules: list[str], reason: str
) -> None:
    """peft leaves out such a name of several without a warning."""
    with refused("training.lora", reason):
        check_adapters(base.config, modules)
    check_adapters(base.config, ["q_proj", "mlp.down_proj", "lm_head", "embed_tokens"])


def test_the_output_of_a_training_is_one_merged_model(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=4, lora={"rank": 4}, save_steps=2)
    train(spec, lambda metrics: None)
    trained, before = (AutoModelForCausalLM.from_pretrained(folder) for folder in (spec.output, tmp_path / "base"))
    changed = {name for name, value in trained.state_dict().items() if not value.equal(before.state_dict()[name])}
    assert changed == {name for name in trained.state_dict() if "_proj" in name}
    assert not list(spec.output.glob("adapter*"))


@pytest.mark.long
def test_adapters_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 8, "lora": {"rank": 4}, "save_steps": 3}
    whole = make_spec(tmp_path, name="whole", **settings)
    run(whole)
    spec = make_spec(tmp_path, name="stopped", **settings)
    run(spec, stop_at=5)
    assert [step["step"] for step in run(spec)] == [4, 5, 6, 7, 8]
    assert weights_differ(whole, spec) == 0
