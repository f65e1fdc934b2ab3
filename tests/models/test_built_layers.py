"""Shapes read off modules: equal to those from configurations where both exist, else to torch's count of a pass."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.models.flops import ModelShape
from tests.error_codes import refused
from tests.models.test_flops import _EXPERTS
from tests.models.test_known_attention import NEXT
from tests.tiny_models import model_config

_LENGTH = 37
GEMMA4: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 20,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 400,
}


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_as_from_the_configuration_alone(kind: str) -> None:
    config = model_config(kind, **_EXPERTS.get(kind, {}))
    lengths, rows = np.array([2.0, 30.0, 90.0]), np.array([1.0, 4.0, 11.0])
    built, plain = ModelShape.built(config), ModelShape.of(config)
    assert built.each and not plain.each
    assert built.token_flops == plain.token_flops and built.head_flops(3) == plain.head_flops(3)
    assert built.pass_flops(lengths).tolist() == plain.pass_flops(lengths).tolist()
    assert built.pass_flops(lengths, rows).tolist() == plain.pass_flops(lengths, rows).tolist()
    assert built.attention_row_flops(5, 70) == plain.attention_row_flops(5, 70)


def _counted(config: Any) -> int:
    """FLOPs of a pass over _LENGTH tokens as torch counts them."""
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(_LENGTH)[None], use_cache=False)
    return counter.get_total_flops()


def test_heads_that_differ_by_layer() -> None:
    config = model_config("gemma4_text", **GEMMA4)
    found = ModelShape.of(config)
    assert [layer.width for layer in found.each] == [4 * 16, 4 * 32] and found.spans == (20, None)
    whole_matrices = 4 * (64 + 128) * _LENGTH**2  # eager computes what is masked, too
    assert _counted(config) == found.token_flops * _LENGTH + found.head_flops(_LENGTH) + whole_matrices


@pytest.mark.parametrize(("kind", "options"), [("mamba", {}), ("mamba2", {}), ("qwen3_next", NEXT)])
def test_layers_with_a_state_are_within_a_quarter(kind: str, options: dict[str, Any]) -> None:
    if kind == "mamba2":
        options = {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "num_hidden_layers": 2}
        options |= {"hidden_size": 64, "vocab_size": 400, "chunk_size": 16}
    config = model_config(kind, **options)
    found = ModelShape.of(config)
    assert found.token_flops > 0 and [layer.width for layer in found.each] == (
        [0, 64] if kind == "qwen3_next" else [0, 0]
    )
    counted = _counted(config)
    mine = found.token_flops * _LENGTH + found.head_flops(_LENGTH)
    mine += 4 * sum(layer.width for layer in found.each) * _LENGTH**2
    assert mine == pytest.approx(counted, rel=0.25), counted


def test_what_cannot_be_built_is_said_by_name() -> None:
    class OtherConfig(PreTrainedConfig):
        model_type = "other"

    with refused("models.flops"):
        ModelShape.of(OtherConfig())
    assert ModelShape.known(OtherConfig()) is None
