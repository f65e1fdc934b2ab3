"""The papers' presets, read back from the training process itself (used_settings.py), not from the configuration.

Every preset runs as it is: its type, ZeRO stage, offloading, lengths, batches and epochs, on two ranks on the CPU. Only
model and mix are tiny; `prolong-sft` has `max_steps` besides, for a warm-up of 5 % shows in no fewer than 20 steps.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.used_settings import SETTINGS_NAME

from .builders import save_mix, save_model
from .processes import finish, log_of, start, wait_for_step, wait_until


def preset(folder: Path, name: str, *, rows: int, longest: int | None = None, **changes: Any) -> TrainingSpec:
    """A training by preset on `rows` short sequences and one of `longest` tokens."""
    save_model(folder / "base")
    mix = pl.read_parquet(save_mix(folder / "mix.parquet", rows=rows))
    if longest is not None:
        ids, blocks = [7] * longest, [2, 1, longest - 5, 2]
        lists = {"input_ids": ids, "labels": ids, "block_tokens": blocks}
        last = mix.tail(1).with_columns(
            *(pl.Series(name, [values], dtype=pl.List(pl.Int32)) for name, values in lists.items()),
            position=pl.lit(rows, dtype=pl.Int32),
            sample_id=pl.lit("longest"),
        )
        mix = pl.concat([mix, last])
    mix.write_parquet(folder / "mix.parquet")
    training = TrainingConfig.model_validate({"preset": name, "processes": 2} | changes)
    return TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(folder / "base"),
        output=folder / "run" / "checkpoint",
        work=folder / "run" / "work",
        training=training,
        deepspeed=deepspeed_config(training.deepspeed, folder=folder),
        fingerprint="fingerprint",
    )


def settings_of(spec: TrainingSpec, *, steps: int) -> dict[str, Any]:
    """What the process says that it uses; it is ended after so many steps."""
    process = start(spec, spec.work.parent / "spec.json")
    try:
        if steps:
            wait_for_step(spec, process, steps)
        else:
            wait_until((spec.work / SETTINGS_NAME).exists, process)
    finally:
        process.terminate()
        process.communicate()
    return json.loads((spec.work / SETTINGS_NAME).read_text())


def adamw(decay: float) -> dict[str, Any]:
    return {
        "class": "torch.optim.adamw.AdamW",
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": decay,
        "max_grad_norm": 1.0,
    }


def in_half_precision(settings: dict[str, Any]) -> bool:
    """bfloat16 weights with float32 master weights."""
    kinds = settings["model"]["weights"], settings["model"]["master_weights"]
    return kinds == (["bfloat16"], ["float32"]) and settings["deepspeed"]["bfloat16"]


@pytest.mark.long
def test_gateau_7b(tmp_path: Path) -> None:
    spec = preset(tmp_path, "gateau-7b", rows=2_000, longest=65_536, batch_size=4)
    used = settings_of(spec, steps=2)
    assert used["optimizer"] == adamw(0.0)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("linear_with_warmup", 2e-5)
    assert (schedule["steps"], schedule["warmup_steps"]) == (42, 2)  # 2 x 2,001 / 96; 3 %
    assert used["batch"] == {"rows": 4, "passes": 12, "reading_ranks": 2, "rows_per_step": 8 * 12}
    data = used["data"]
    assert (data["epochs"], data["documents"], data["longest_document"]) == (2, 2 * 2_001, 65_536)
    assert used["deepspeed"]["zero_stage"] == 3
    assert used["deepspeed"]["on_the_cpu"] == ["optimizer", "parameters"]
    assert in_half_precision(used)
    assert used["model"]["gradient_checkpointing"]


@pytest.mark.long
def test_skipalign(tmp_path: Path) -> None:
    used = settings_of(preset(tmp_path, "skipalign", rows=2_000, longest=4_096), steps=2)
    assert used["optimizer"] == adamw(0.0)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("linear_with_warmup", 1e-5)
    assert (schedule["steps"], schedule["warmup_steps"]) == (167, 6)  # 2 x 2,001 / 24; 3 %
    rates = schedule["learning_rates"]
    assert rates["1"] == 0
    assert rates["7"] == 1e-5
    assert rates["167"] == pytest.approx(1e-5 / 161)  # the line meets zero one step behind the last
    assert used["data"]["skip"] == {"strategy": "outer", "length": 100_000, "probability": 0.5}
    assert (used["data"]["positions_below"], used["data"]["longest_document"]) == (100_000, 4_096)
    assert (used["data"]["epochs"], used["deepspeed"]["zero_stage"]) == (2, 3)
    assert used["model"]["attention"] == "gateau_training_documents"
    assert in_half_precision(used)


@pytest.mark.long
def test_prolong_sft(tmp_path: Path) -> None:
    spec = preset(tmp_path, "prolong-sft", rows=20, longest=65_536, max_steps=100)
    used = settings_of(spec, steps=0)
    assert used["optimizer"] == adamw(0.1)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("cosine_with_warmup", 2e-5)
    assert (schedule["steps"], schedule["warmup_steps"], schedule["lowest_ratio"]) == (100, 5, 0.1)
    rates = {int(step): rate for step, rate in schedule["learning_rates"].items()}
    assert rates[6] == 2e-5
    assert min(rate for step, rate in rates.items() if step > 6) == rates[100] == pytest.approx(2e-6, rel=0.02)
    batch = used["batch"]
    assert batch["rows_per_step"] * used["data"]["longest_row"] == 4 * 2**20  # tokens
    assert batch == {"rows": 1, "passes": 32, "reading_ranks": 2, "rows_per_step": 64}
    assert used["deepspeed"] == {"zero_stage": 3, "on_the_cpu": [], "bfloat16": True, "float16": False}
    assert in_half_precision(used)
    assert (used["model"]["gradient_checkpointing"], used["model"]["chunked_loss"]) == (True, True)


@pytest.mark.long
def test_prolong_sft_to_its_end(tmp_path: Path) -> None:
    spec = preset(tmp_path, "prolong-sft", rows=40)
    finish(start(spec, tmp_path / "spec.json"))
    [step] = log_of(spec)
    assert 0 < step["loss"] < 10
    assert (step["step"], step["total"], step["tokens"]) == (
        1,
        1,
        pl.read_parquet(spec.mix)["input_ids"].list.len().sum(),
    )
