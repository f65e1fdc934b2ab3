"""The papers' presets, read back from the training process itself (used_settings.py), not from the configuration.

Every preset runs as it is: its type, ZeRO stage, offloading, lengths, cutting, batches and epochs, on two ranks on the
CPU, and it makes its mix from a sample that is too long. Only model and mix are tiny; `prolong-sft` has `max_steps`
besides, for a warm-up of 5 % shows in no fewer than 20 steps.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.progress import silent
from gateau_dagster.tables import SELECTED_SUBSET, SHORT_CHAT_MIX, schema
from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.training_mix import build_training_mix
from gateau_dagster.training.used_settings import SETTINGS_NAME
from tests.training.builders import save_model, tokenizer
from tests.training.processes import finish, log_of, start, wait_for_step, wait_until

OVERLONG = Sample(
    sample_id="long",
    source="s",
    context="the harbour ledger " * 150,
    instruction="what is it?",
    response="the answer is 17 " * 15_000,
)
"""A prompt that fits any preset, and an answer that fits none."""


def preset(folder: Path, name: str, *, rows: int, overlong: bool = True, **changes: Any) -> TrainingSpec:
    """A training by preset, its mix of `rows` conversations, and unless told otherwise of one sample that is longer
    than any preset's rows, because of its answer."""
    save_model(folder / "base")
    training = TrainingConfig.model_validate({"preset": name, "processes": 2} | changes)
    chosen = [{**asdict(OVERLONG), "digest": OVERLONG.digest, "score": 1.0, "rank": 1}] if overlong else []
    long = pl.DataFrame(chosen, schema(SELECTED_SUBSET))
    short = pl.DataFrame(
        [(f"short{row}", "chat", talk(row), "digest", [False, True] * 2) for row in range(rows)],
        schema(SHORT_CHAT_MIX),
        orient="row",
    )
    mix, rejected = build_training_mix(long, short, tokenizer(), training=training, template="gateau", progress=silent)
    assert rejected.is_empty()
    mix.write_parquet(folder / "mix.parquet")
    return TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(folder / "base"),
        output=folder / "run" / "checkpoint",
        work=folder / "run" / "work",
        training=training,
        deepspeed=agreed_deepspeed_config(training, folder=folder),
        fingerprint="fingerprint",
    )


def talk(number: int) -> list[dict[str, str]]:
    """Two turns of some tokens, not the same ones in any two conversations."""
    turns = [f"what is {number}?", "x" * (number % 9) + "answer", "why?", f"the answer is {number}"]
    return [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]


def cut_at(used: dict[str, Any], spec: TrainingSpec) -> int:
    """The length of the over-long sample in the process; what is trained there proves that its answer lost its end."""
    asked, _ = build_prompt(tokenizer(), OVERLONG, max_length=10**6).response_span
    conversations = pl.read_parquet(spec.mix).filter(origin="short")["labels"].explode()
    answers = int((conversations != IGNORED).sum())
    data = used["data"]
    assert data["trained_tokens"] == data["epochs"] * (answers + data["longest_document"] - asked)
    return data["longest_document"]


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
    spec = preset(tmp_path, "gateau-7b", rows=2_000, batch_size=4)
    used = settings_of(spec, steps=2)
    assert used["optimizer"] == adamw(0.0)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("linear_with_warmup", 2e-5)
    assert (schedule["steps"], schedule["warmup_steps"]) == (42, 2)  # 2 x 2,001 / 96; 3 %
    assert used["batch"] == {"rows": 4, "passes": 12, "reading_ranks": 2, "rows_per_step": 8 * 12}
    data = used["data"]
    assert (data["epochs"], data["documents"]) == (2, 2 * 2_001)
    assert cut_at(used, spec) == 65_536
    assert used["deepspeed"]["zero_stage"] == 3
    assert used["deepspeed"]["on_the_cpu"] == ["optimizer", "parameters"]
    assert in_half_precision(used)
    assert used["model"]["gradient_checkpointing"]


@pytest.mark.long
def test_skipalign(tmp_path: Path) -> None:
    spec = preset(tmp_path, "skipalign", rows=2_000)
    used = settings_of(spec, steps=2)
    assert used["optimizer"] == adamw(0.0)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("linear_with_warmup", 1e-5)
    assert (schedule["steps"], schedule["warmup_steps"]) == (167, 6)  # 2 x 2,001 / 24; 3 %
    rates = schedule["learning_rates"]
    assert rates["1"] == 0
    assert rates["7"] == 1e-5
    assert rates["167"] == pytest.approx(1e-5 / 161)  # the line meets zero one step behind the last
    assert used["data"]["skip"] == {"strategy": "outer", "length": 100_000, "probability": 0.5}
    assert (used["data"]["positions_below"], cut_at(used, spec)) == (100_000, 4_096)
    assert (used["data"]["epochs"], used["deepspeed"]["zero_stage"]) == (2, 3)
    assert used["model"]["attention"] == "gateau_training_documents"
    assert in_half_precision(used)


@pytest.mark.long
def test_prolong_sft(tmp_path: Path) -> None:
    spec = preset(tmp_path, "prolong-sft", rows=20, max_steps=100)
    used = settings_of(spec, steps=0)
    assert used["optimizer"] == adamw(0.1)
    schedule = used["schedule"]
    assert (schedule["kind"], schedule["peak_learning_rate"]) == ("cosine_with_warmup", 2e-5)
    assert (schedule["steps"], schedule["warmup_steps"], schedule["lowest_ratio"]) == (100, 5, 0.1)
    rates = {int(step): rate for step, rate in schedule["learning_rates"].items()}
    assert rates[6] == 2e-5
    assert min(rate for step, rate in rates.items() if step > 6) == rates[100] == pytest.approx(2e-6, rel=0.02)
    assert cut_at(used, spec) == 65_536
    batch = used["batch"]
    assert batch["rows_per_step"] * used["data"]["longest_row"] == 4 * 2**20  # tokens
    assert batch == {"rows": 1, "passes": 32, "reading_ranks": 2, "rows_per_step": 64}
    assert used["deepspeed"] == {"zero_stage": 3, "on_the_cpu": [], "bfloat16": True, "float16": False}
    assert in_half_precision(used)
    assert (used["model"]["gradient_checkpointing"], used["model"]["chunked_loss"]) == (True, True)


@pytest.mark.long
def test_prolong_sft_to_its_end(tmp_path: Path) -> None:
    spec = preset(tmp_path, "prolong-sft", rows=40, overlong=False)
    finish(start(spec, tmp_path / "spec.json"))
    [step] = log_of(spec)
    assert 0 < step["loss"] < 10
    assert (step["step"], step["total"], step["tokens"]) == (
        1,
        1,
        pl.read_parquet(spec.mix)["input_ids"].list.len().sum(),
    )
