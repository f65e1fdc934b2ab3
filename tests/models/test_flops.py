"""FLOPs from the shape alone, against torch's count of a real pass and against counting the pairs that attend."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.shapes import built_shape, known_shape, model_shape
from tests.kit.error_codes import refused
from tests.kit.tiny_models import model_config
from tests.models.test_model_facts import NEXT

_LENGTH = 37
_EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 2},
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
}
_KINDS = ("llama", "qwen3", "mistral", "gemma3_text", "gpt2", "bloom", "phi", "starcoder2", "gpt_oss", *_EXPERTS)


def shape(kind: str, **changes: Any) -> ModelShape:
    return model_shape(model_config(kind, **_EXPERTS.get(kind, {}), **changes))


@pytest.mark.parametrize("kind", _KINDS)
def test_against_the_count_of_a_real_pass(kind: str) -> None:
    config = model_config(kind, **_EXPERTS.get(kind, {}))
    found = model_shape(config)
    whole_matrix = 4 * found.layers * found.heads * found.head_dim * _LENGTH**2  # eager computes what is masked, too
    assert _counted(config) == found.token_flops * _LENGTH + found.head_flops(_LENGTH) + whole_matrix


def pairs(length: int, span: int | None) -> int:
    """Counts the entries of the mask."""
    query, key = np.arange(length)[:, None], np.arange(length)[None]
    return int(((key <= query) & (query - key < (span or length))).sum())


@pytest.mark.parametrize(
    ("kind", "changes", "spans"),
    [
        ("llama", {}, [None, None]),
        ("mistral", {"sliding_window": 20}, [20, 20]),
        ("mistral", {"sliding_window": None}, [None, None]),
        ("gemma2", {"sliding_window": 48}, [48, None]),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False}, [None, None]),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, [None, 8]),
    ],
)
def test_attention_against_counting_pairs(kind: str, changes: dict[str, Any], spans: list[int | None]) -> None:
    options = {**{"gemma2": {"attn_logit_softcapping": None}}.get(kind, {}), **changes}
    found = shape(kind, **options)
    for length in (1, 7, 20, 21, 90):
        counted = sum(pairs(length, span) for span in spans) * 4 * found.heads * found.head_dim
        assert found.attention_flops(np.array([float(length)]))[0] == counted
        rows = sum(min(length, span or length) for span in spans) * 2 * found.heads * found.head_dim * 5
        assert found.attention_row_flops(5, length) == rows


def row_by_row(found: ModelShape, length: int, rows: int) -> float:
    """pass_flops with what each token costs in each layer, one after the other."""
    total = 0
    matrices = 3 if found.gated else 2
    for layer, span in enumerate(found.spans or [None] * found.layers):
        last = layer == found.layers - 1
        dense = found.ends_dense if last else layer < found.dense_layers - found.ends_dense
        for token in range(length):
            total += 2 * found.hidden * 2 * found.kv_heads * found.head_dim
            if last and not length - 1 - rows <= token < length - 1:
                continue
            total += 2 * found.hidden * 2 * found.heads * found.head_dim
            width = matrices * (found.dense_intermediate if dense else found.intermediate)
            total += 2 * found.hidden * (width if dense else width + found.router)
            total += 4 * found.heads * found.head_dim * min(token + 1, span or length)
    return total


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gpt2", *_EXPERTS])
def test_rows_of_the_last_layer_against_counting_row_by_row(kind: str) -> None:
    found = shape(kind, **{"sliding_window": 20} if kind in {"mistral", "gemma2"} else {})
    lengths, rows = np.array([2.0, 7.0, 30.0, 30.0, 90.0]), np.array([1.0, 6.0, 4.0, 29.0, 11.0])
    each = [row_by_row(found, int(length), int(some)) for length, some in zip(lengths, rows, strict=True)]
    assert found.pass_flops(lengths, rows).tolist() == each
    whole = found.pass_flops(lengths)
    assert whole.tolist() == (found.token_flops * lengths + found.attention_flops(lengths)).tolist()
    assert (whole > each).all() and whole[4] > 2 * found.pass_flops(lengths / 2)[4]


def test_a_layer_without_attention_and_a_prompt_that_is_not_there_count_none() -> None:
    assert shape("llama").pass_flops(np.zeros(1), np.zeros(1)).tolist() == [0.0]
    found = ModelShape(
        layers=2, hidden=4, heads=1, kv_heads=1, head_dim=4, intermediate=8, vocabulary=9, spans=(0, None)
    )
    assert found.attention_flops(np.array([10.0]))[0] == 4 * 4 * 55


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
    built, plain = built_shape(config), model_shape(config)
    assert built.each and not plain.each
    assert built.token_flops == plain.token_flops and built.head_flops(3) == plain.head_flops(3)
    assert built.pass_flops(lengths).tolist() == plain.pass_flops(lengths).tolist()
    assert built.pass_flops(lengths, rows).tolist() == plain.pass_flops(lengths, rows).tolist()
    assert built.attention_row_flops(5, 70) == plain.attention_row_flops(5, 70)


def _counted(config: Any) -> int:
    """FLOPs of a pass over _LENGTH tokens as torch counts them."""
    config._experts_implementation = "eager"  # the other ways run matrix products that the counter does not know
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(_LENGTH)[None], use_cache=False)
    return counter.get_total_flops()


def test_heads_that_differ_by_layer() -> None:
    config = model_config("gemma4_text", **GEMMA4)
    found = model_shape(config)
    assert [layer.width for layer in found.each] == [4 * 16, 4 * 32] and found.spans == (20, None)
    whole_matrices = 4 * (64 + 128) * _LENGTH**2  # eager computes what is masked, too
    assert _counted(config) == found.token_flops * _LENGTH + found.head_flops(_LENGTH) + whole_matrices


@pytest.mark.parametrize(("kind", "options"), [("mamba", {}), ("mamba2", {}), ("qwen3_next", NEXT)])
def test_layers_with_a_state_are_within_a_quarter(kind: str, options: dict[str, Any]) -> None:
    if kind == "mamba2":
        options = {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "num_hidden_layers": 2}
        options |= {"hidden_size": 64, "vocab_size": 400, "chunk_size": 16}
    config = model_config(kind, **options)
    found = model_shape(config)
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
        model_shape(OtherConfig())
    assert known_shape(OtherConfig()) is None
