"""Compare ranks, with rows of their own or shared ones, with one process: loss and every gradient of every step."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.training.launch import TrainingSpec
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
_log = logging.getLogger(__name__)
Case = tuple[str, dict[str, Any]]  # the stage of ZeRO, and settings
EVERY_DAY: Case = ("zero2", {**ROWS, "skip": SKIPS, "loss": "far_gain", "batch_size": 2})
LEVERS: Case = (
    "zero3",
    {**ROWS, **LORA, "gradient_checkpointing": True, "offload_activations": "on", "tiled_mlp": 9},
)
WIDE: Sequence[Case] = [
    (stage, changes)
    for stage in ("zero1", "zero2", "zero3")
    for changes in (
        {**ROWS, "skip": SKIPS},
        {**ROWS, "loss": "sequence", "batch_size": 2, "gradient_checkpointing": True},
        {**ROWS, "loss": "longce", "skip": SKIPS | {"strategy": "inner"}},
        {**ROWS, "loss": "far_gain", "batch_size": 2},
        {**ROWS, "loss": "exact"},
        {**ROWS, **LORA, "skip": SKIPS, "loss": "longce", "gradient_checkpointing": True},
        {**ROWS, "batching": "concatenated", "loss": "sequence", "batch_size": 2},
        {"batching": "sorted", "skip": SKIPS},
    )
]


def specs(folder: Path, case: Case, *, processes: int, size: int, base: Path | None = None) -> list[TrainingSpec]:
    """Return a training by ranks of which `size` share a row, and the same training by one process."""
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


def differences(found: list[Step], wanted: list[Step]) -> list[float]:
    """Return, for each step, the larger one of two differences: of the loss, and of a gradient as a part of its
    parameter's largest one.
    """
    assert len(found) == len(wanted) == 3
    losses = [float(abs(step.pop("loss") - expected.pop("loss"))) for step, expected in zip(found, wanted, strict=True)]
    # A router that always chooses one expert has no gradient.
    assert all(gradient.any() for name, gradient in wanted[-1].items() if "router" not in name)
    gradients = [largest_difference(step, expected) for step, expected in zip(found, wanted, strict=True)]
    return [max(both) for both in zip(losses, gradients, strict=True)]


def compare(folder: Path, pairs: list[list[TrainingSpec]]) -> None:
    """Compare each pair, and log its largest difference in each step."""
    by_ranks = recorded_by_ranks([shared for shared, _ in pairs], folder)
    for found, (shared, alone) in zip(by_ranks, pairs, strict=True):
        first, *later = differences(found, recorded(alone))
        name, settings = Path(shared.base_model).name, shared.training.model_dump(exclude_defaults=True)
        settings["deepspeed"] = shared.deepspeed and shared.deepspeed["zero_optimization"]["stage"]
        _log.info("%s: %s %s", " ".join(f"{each:.1e}" for each in (first, *later)), name, settings)
        assert first <= 1e-5
        # AdamW divides a gradient by its own size. Where it is rounding only, one process and the ranks step apart by
        # up to the learning rate, and all gradients after that differ: on one processor by 2e-5, after 5e-7 before.
        assert max(later) <= 5e-5


def prepare(folder: Path) -> None:
    save_model(folder / "base")
    save_mix(folder / "mix.parquet", weighted=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", [EVERY_DAY, pytest.param(LEVERS, marks=pytest.mark.long)], ids=["losses", "adapters"])
def test_packed_rows_skips_losses_and_adapters_on_two_ranks(tmp_path: Path, case: Case) -> None:
    """The only ranks of every day: one training in which each reads rows of its own, then those that share them."""
    prepare(tmp_path)
    own_rows = specs(tmp_path, ("zero3", {**ROWS, "skip": SKIPS}), processes=2, size=1)
    pairs = [own_rows, specs(tmp_path, case, processes=2, size=2)]
    alone = pairs[0][1]
    mix = read_mix(alone.mix)
    lengths = mix["input_ids"].list.len().to_list()
    rows = [[lengths[each.row] for each in row] for row in plan_of(alone, mix).rows]
    assert any(len(row) >= 3 for row in rows) and any(2 * max(row, default=0) > sum(row) > 40 for row in rows)
    compare(tmp_path, pairs)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("processes", "size"), [(2, 2), (4, 2), (4, 4)])
def test_every_kind_of_row_loss_and_stage(tmp_path: Path, processes: int, size: int) -> None:
    """Four ranks are also two groups of two; four that share a row are more than the key-value heads."""
    prepare(tmp_path)
    compare(tmp_path, [specs(tmp_path, case, processes=processes, size=size) for case in WIDE])


@pytest.mark.long
@pytest.mark.timeout(1800)
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
