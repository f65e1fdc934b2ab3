"""Ranks that share rows (sequence parallelism) against one process: the loss and every gradient of every step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import plan_of, read_mix
from tests.training.builders import (
    KINDS,
    largest_difference,
    make_model,
    make_spec,
    save_mix,
    save_model,
    tokenizer,
)
from tests.training.gradients import Step, recorded, recorded_by_ranks
from tests.training.test_ranks import SKIPS, whole_parts

ROWS = {"batching": "packed", "pack_length": 70}
LORA = {"lora": {"rank": 4, "alpha": 8}, "learning_rate": 5e-3}
Case = tuple[str, dict[str, Any]]  # the stage of ZeRO, and settings
EVERY_DAY: Sequence[Case] = [
    ("zero3", {**ROWS, "skip": SKIPS, "loss": "sequence"}),
    ("zero2", {**ROWS, "skip": SKIPS, "loss": "longce", "batch_size": 2}),
    ("zero3", {**ROWS, **LORA, "gradient_checkpointing": True, "offload_activations": "on", "tiled_mlp": 9}),
]
WIDE: Sequence[Case] = [
    (stage, changes)
    for stage in ("zero1", "zero2", "zero3")
    for changes in (
        {**ROWS, "skip": SKIPS},
        {**ROWS, "loss": "sequence", "batch_size": 2, "gradient_checkpointing": True},
        {**ROWS, "loss": "longce", "skip": SKIPS | {"strategy": "inner"}},
        {**ROWS, "loss": "exact"},
        {**ROWS, **LORA, "skip": SKIPS, "loss": "longce", "gradient_checkpointing": True},
        {**ROWS, "batching": "concatenated", "loss": "sequence", "batch_size": 2},
        {"batching": "sorted", "skip": SKIPS},
    )
]


def specs(folder: Path, case: Case, *, processes: int, size: int, base: Path | None = None) -> list[TrainingSpec]:
    """The training by ranks of which `size` share a row, and the same by one process."""
    stage, changes = case
    settings: dict[str, Any] = {
        "batch_size": 1,
        "gradient_accumulation": 2,
        "max_steps": 3,
        "max_grad_norm": 1e9,
        "learning_rate": 1e-4,  # AdamW makes steps of this size of gradients that are rounding only
    } | changes
    ranks: dict[str, Any] = {"processes": processes, "sequence_parallel": size}
    alone: dict[str, Any] = {"batch_size": settings["batch_size"] * processes // size, "balanced": False}
    found = [
        make_spec(folder, deepspeed=whole_parts(stage, folder), **settings | ranks),
        make_spec(folder, **settings | alone),
    ]
    return found if base is None else [replace(spec, base_model=str(base)) for spec in found]


def agree(found: list[Step], wanted: list[Step]) -> None:
    assert len(found) == len(wanted) == 3
    for step, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(step.pop("loss"), expected.pop("loss"), atol=1e-5, rtol=0)
        assert largest_difference(step, expected) <= 1e-5
    # A router that always chooses one expert has no gradient.
    assert all(gradient.any() for name, gradient in wanted[-1].items() if "router" not in name)


def compare(folder: Path, pairs: list[list[TrainingSpec]]) -> None:
    by_ranks = recorded_by_ranks([shared for shared, _ in pairs], folder)
    for found, (_, alone) in zip(by_ranks, pairs, strict=True):
        agree(found, recorded(alone))


def prepare(folder: Path) -> None:
    save_model(folder / "base")
    save_mix(folder / "mix.parquet", weighted=True)


@pytest.mark.slow
def test_packed_rows_skips_losses_and_adapters_on_two_ranks(tmp_path: Path) -> None:
    prepare(tmp_path)
    pairs = [specs(tmp_path, case, processes=2, size=2) for case in EVERY_DAY]
    alone = pairs[0][1]
    mix = read_mix(alone.mix)
    lengths = mix["input_ids"].list.len().to_list()
    rows = [[lengths[each.row] for each in row] for row in plan_of(alone, mix).rows]
    assert any(len(row) >= 3 for row in rows) and any(2 * max(row, default=0) > sum(row) > 40 for row in rows)
    compare(tmp_path, pairs)


@pytest.mark.long
@pytest.mark.parametrize(("processes", "size"), [(2, 2), (4, 2), (4, 4)])
def test_every_kind_of_row_loss_and_stage(tmp_path: Path, processes: int, size: int) -> None:
    """On four ranks also two groups, and more ranks than key-value heads."""
    prepare(tmp_path)
    compare(tmp_path, [specs(tmp_path, case, processes=processes, size=size) for case in WIDE])


@pytest.mark.long
@pytest.mark.parametrize(("processes", "size"), [(2, 2), (4, 4)])
def test_windows_soft_caps_sinks_and_experts(tmp_path: Path, processes: int, size: int) -> None:
    prepare(tmp_path)
    pairs = []
    for kind in sorted({*KINDS} - {"gpt2"}):
        model = make_model(kind, **KINDS[kind] | {"dtype": torch.float32})
        model.save_pretrained(tmp_path / kind)
        tokenizer().save_pretrained(tmp_path / kind)
        case = ("zero3", {**ROWS, "skip": SKIPS})
        pairs.append(specs(tmp_path, case, processes=processes, size=size, base=tmp_path / kind))
    compare(tmp_path, pairs)
