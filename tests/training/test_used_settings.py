"""What one process says that it uses. The presets on two ranks are in test_presets_in_use.py."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.model import PLAN_NAME
from gateau_dagster.training.train import train
from gateau_dagster.training.used_settings import SETTINGS_NAME, _is_liger
from tests.training.builders import make_spec
from tests.training.processes import result_of


def settings_of(folder: Path, **training: Any) -> dict[str, Any]:
    spec = make_spec(folder, **training)
    train(spec, lambda metrics: None)
    used = json.loads((spec.work / SETTINGS_NAME).read_text())
    assert result_of(spec)["settings"] == used
    return used


def trained_tokens(folder: Path) -> int:
    """Of every line of the stored plan, label by label."""
    labels = pl.read_parquet(folder / "mix.parquet").sort("position")["labels"].to_list()
    plan = pl.read_parquet(folder / "run" / "checkpoint" / PLAN_NAME)
    return sum(label != IGNORED for row in plan["mix_row"] for label in labels[row][1:])


def test_padded(tmp_path: Path) -> None:
    used = settings_of(
        tmp_path,
        adam_betas=(0.8, 0.85),
        weight_decay=0.3,
        max_grad_norm=0.7,
        scheduler="constant",
        warmup_ratio=0.5,
        gradient_accumulation=3,
        batch_size=2,
        max_steps=4,
        gradient_checkpointing=True,
    )
    optimizer = {"betas": [0.8, 0.85], "eps": 1e-8, "weight_decay": 0.3, "max_grad_norm": 0.7}
    assert used["optimizer"] == {"class": "torch.optim.adamw.AdamW"} | optimizer
    assert used["schedule"] == {
        "kind": "constant_with_warmup",
        "peak_learning_rate": 5e-3,
        "warmup_steps": 2,
        "steps": 4,
        "lowest_ratio": None,
        "learning_rates": {"1": 0.0, "3": 5e-3, "4": 5e-3},
    }
    assert used["batch"] == {"rows": 2, "passes": 3, "reading_ranks": 1, "rows_per_step": 6}
    assert used["data"] == {
        "documents": 24,
        "trained_tokens": trained_tokens(tmp_path),
        "epochs": 3,
        "longest_document": 40,
        "longest_row": 40,
        "rows_per_step": 6,
        "concatenated": False,
        "steps": 4,
        "positions_below": 40,
        "skip": None,
    }
    model = used["model"]
    assert (model["weights"], model["master_weights"], model["attention"]) == (["float32"], ["float32"], "sdpa")
    assert (model["chunked_loss"], model["gradient_checkpointing"], model["liger_kernels"]) == (True, True, False)
    assert model["trained_parameters"] == model["parameters"]
    assert used["deepspeed"] is None
    assert used["ranks"] == {"processes": 1, "sequence_parallel": 1, "device": "cpu", "joined": "NO"}


def test_packed_with_skips_and_adapters(tmp_path: Path) -> None:
    skip = {"strategy": "inner", "length": 300, "probability": 0.25}
    used = settings_of(
        tmp_path, batching="packed", pack_length=90, skip=skip, lora={"rank": 2}, max_steps=2, scheduler="cosine"
    )
    assert used["data"]["skip"] == skip
    assert (used["data"]["positions_below"], used["model"]["attention"]) == (300, "gateau_training_documents")
    assert 64 < used["data"]["longest_row"] <= 90
    assert used["schedule"]["kind"] == "cosine_with_warmup"
    assert used["schedule"]["learning_rates"]["2"] == pytest.approx(5e-3)
    assert 0 < used["model"]["trained_parameters"] < 0.2 * used["model"]["parameters"]
    assert (used["model"]["class"], used["model"]["chunked_loss"]) == ("LlamaForCausalLM", True)


def test_layers_of_liger_are_told_by_their_forward() -> None:
    """As liger-kernel puts its own forward into the layers of a model."""
    layer = torch.nn.Identity()
    assert not _is_liger(layer)

    def forward(self: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
        return states

    forward.__module__ = "liger_kernel.transformers.rms_norm"
    layer.forward = forward.__get__(layer)
    assert _is_liger(layer)
