"""FLOPs from the shape alone, against torch's count of a real pass and against counting the pairs that attend."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from gateau_dagster.scoring.effort import ModelShape, Work
from tests.scoring.builders import model_config

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
    return ModelShape.of(model_config(kind, **_EXPERTS.get(kind, {}), **changes))


@pytest.mark.parametrize("kind", _KINDS)
def test_against_the_count_of_a_real_pass(kind: str) -> None:
    config = model_config(kind, **_EXPERTS.get(kind, {}))
    config._experts_implementation = "eager"  # the other ways run matrix products that the counter does not know
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(_LENGTH)[None], use_cache=False)
    found = ModelShape.of(config)
    whole_matrix = 4 * found.layers * found.heads * found.head_dim * _LENGTH**2  # eager computes what is masked, too
    assert counter.get_total_flops() == found.token_flops * _LENGTH + found.head_flops(_LENGTH) + whole_matrix


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


def test_documents_add_up() -> None:
    found = shape("llama")
    assert found.body_flops([3, 50]) == found.body_flops([3]) + found.body_flops([50])
    assert found.body_flops([50]) > found.body_flops([25, 25])
    assert found.body_flops([]) == 0


def test_a_layer_without_attention_counts_none() -> None:
    found = ModelShape(
        layers=2, hidden=4, heads=1, kv_heads=1, head_dim=4, intermediate=8, vocabulary=9, spans=(0, None)
    )
    assert found.attention_flops(np.array([10.0]))[0] == 4 * 4 * 55


def test_work_adds_up() -> None:
    work = Work()
    work.add(3, 2.0)
    work.add(4, 0.5)
    assert (work.tokens, work.flops) == (7, 2.5)
