"""Two ranks by the product's own command against one document at a time in one process (slow_loop.py)."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.launch import failure_message
from gateau_dagster.training.train import plan_of, read_mix
from tests.training.builders import (
    agree,
    compare_with_loop,
    finish,
    log_of,
    make_spec,
    rank_process,
    result_of,
    run,
    save_model,
    start,
    wait_for_step,
)

PACKED: dict[str, Any] = {
    "processes": 2,
    "batch_size": 1,
    "gradient_accumulation": 2,
    "batching": "packed",
    "pack_length": 70,
    "weight_decay": 0.1,
    "save_steps": 50,
}
SKIPS = {"strategy": "outer", "length": 500, "probability": 0.5}


def whole_parts(stage: str, folder: Path) -> dict[str, Any]:
    """The preset's DeepSpeed settings with every parameter spread over the ranks, however small."""
    config = deepspeed_config(stage, folder=folder)
    assert config is not None
    if "zero3" in stage:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return config


def has_learned(losses: list[float]) -> None:
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@pytest.mark.long
def test_zero3_on_packed_rows_with_skips_goes_on_after_the_death_of_a_rank(tmp_path: Path) -> None:
    settings = PACKED | {"max_steps": 12, "save_steps": 4, "skip": SKIPS}
    spec = make_spec(tmp_path, deepspeed=whole_parts("zero3", tmp_path), **settings)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 6)
    rank_process(process, 1).kill()
    output = process.communicate(timeout=300)[0]
    assert process.returncode != 0, output
    assert not spec.output.exists()
    assert re.search(
        r"(system often kills|killed, often by the system).* lack of memory", failure_message(spec, process.returncode)
    )
    output = finish(start(spec, tmp_path / "spec.json"))
    assert "step 5/12" in output
    assert "step 4/12" not in output
    has_learned(compare_with_loop(spec))
    assert AutoModelForCausalLM.from_pretrained(spec.output).dtype == torch.float32
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}


PADDED = {"batching": "padded", "pack_length": None}
TIED: dict[str, Any] = {"tied": True, "max_steps": None, "epochs": 6.0, "gradient_checkpointing": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        *(
            ("zero3", {"max_steps": 20, "skip": SKIPS | {"strategy": strategy}})
            for strategy in ("all", "inner", "outer")
        ),
        *((stage, {}) for stage in ("zero1", "zero2", "zero2_offload", "zero3_offload")),
        *((stage, TIED) for stage in ("zero3", "zero2", None)),
        # A step is divided by its weights, whose tokens are spread unevenly over ranks and passes.
        *(
            (stage, {"loss": loss, "skip": None, **batching})
            for loss in ("sequence", "far_gain")
            for stage, batching in ((None, PADDED), ("zero2", {}), ("zero3", PADDED | {"batching": "sorted"}))
        ),
    ],
)
def test_every_preset_of_deepspeed_and_none(tmp_path: Path, stage: str | None, changes: dict[str, Any]) -> None:
    """Also every loss and way of skipping, with tied weights, and a last step that has rows without any label."""
    training = {"max_steps": 12, "skip": SKIPS, **PACKED, **changes}
    tied, config = training.pop("tied", False), whole_parts(stage, tmp_path) if stage else None
    spec = make_spec(tmp_path, deepspeed=config, **training)
    save_model(tmp_path / "base", tied=tied)
    mix = read_mix(spec.mix, weighted=spec.training.weighs_in_mix)
    assert not tied or not plan_of(spec, mix).rows[-1]
    finish(start(spec, tmp_path / "spec.json"))
    assert len(log_of(spec)) == plan_of(spec, mix).steps
    has_learned(compare_with_loop(spec))


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        (None, {}),
        ("zero2", {"lora": {"rank": 4}}),
        ("zero3", {"gradient_accumulation": 2}),
        ("zero3", {"lora": {"rank": 4}}),
        # Ranks read rows of different lengths, and some of fewer tokens than tiles.
        ("zero3", {"batching": "padded", "pack_length": None, "skip": None}),
    ],
)
def test_tiles_and_offloaded_checkpoints_on_two_ranks(
    tmp_path: Path, stage: str | None, changes: dict[str, Any]
) -> None:
    config = whole_parts(stage, tmp_path) if stage else None
    settings = {"max_steps": 8, "gradient_checkpointing": True, **PACKED, **changes}
    plain = make_spec(tmp_path, name="plain", deepspeed=config, **settings)
    finish(start(plain, tmp_path / "plain.json"))
    levers = make_spec(tmp_path, deepspeed=config, offload_activations="on", tiled_mlp=3, **settings)
    finish(start(levers, tmp_path / "spec.json"))
    agree(levers, plain)
    used = result_of(levers)["settings"]["model"]
    assert (used["offloaded_activations"], used["mlp_tile_tokens"]) == (True, 3)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_adapters_are_merged_into_one_model(tmp_path: Path, stage: str) -> None:
    adapters = {"lora": {"rank": 4, "alpha": 8}, "max_steps": 12, "learning_rate": 2e-2}
    spec = make_spec(tmp_path, deepspeed=whole_parts(stage, tmp_path), **PACKED | adapters)
    finish(start(spec, tmp_path / "spec.json"))
    # The same documents a step in one process: its passes are the two ranks' passes.
    alone = make_spec(
        tmp_path, name="alone", **PACKED | adapters | {"processes": 1, "gradient_accumulation": 4, "balanced": False}
    )
    run(alone)
    agree(spec, alone)
    base, merged = (AutoModelForCausalLM.from_pretrained(place) for place in (spec.base_model, spec.output))
    assert merged.state_dict().keys() == base.state_dict().keys()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert float((merged.state_dict()[name] - base.state_dict()[name]).abs().max()) > 1e-2
    assert torch.equal(merged.lm_head.weight, base.lm_head.weight)  # all-linear leaves out the head


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("zero3", {}),
        ("zero3", {"gradient_accumulation": 3, "loss": "sequence", "gradient_checkpointing": True}),
        ("zero2", {"processes": 4, "batching": "sorted"}),
        ("zero3", {"processes": 4, "gradient_accumulation": 2}),
        ("zero3", {"batching": "concatenated", "pack_length": 90, "loss": "sequence"}),
        ("zero2", {"gradient_accumulation": 3, "loss": "longce"}),
        ("zero2", {"gradient_accumulation": 3, "loss": "far_gain"}),
        ("zero3", {"processes": 4, "batching": "packed", "pack_length": 70, "skip": SKIPS, "batch_size": 1}),
    ],
)
def test_ranks_that_share_a_sequence(tmp_path: Path, stage: str, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"processes": 2, "sequence_parallel": 2, "batch_size": 2, "gradient_accumulation": 1}
    spec = make_spec(tmp_path, deepspeed=whole_parts(stage, tmp_path), max_steps=12, **settings | changes)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 5)  # the third is saved
    rank_process(process, 1).kill()
    process.communicate(timeout=300)
    finish(start(spec, tmp_path / "spec.json"))
    has_learned(compare_with_loop(spec))
