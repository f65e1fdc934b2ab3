"""Compare the settings that a training run uses with those it reports: one process, and two ranks under each preset.

The model card prints the same settings.
"""

import json
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import transformers
import yaml

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.progress import silent
from gateau_dagster.tables import SELECTED_SUBSET, SHORT_CHAT_MIX, schema
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.model import PLAN_NAME, model_card
from gateau_dagster.training.train import plan_of, read_mix, train
from gateau_dagster.training.training_mix import build_training_mix
from gateau_dagster.training.used_settings import SETTINGS_NAME, _is_liger
from tests.training.builders import (
    finish,
    log_of,
    make_spec,
    read_plan,
    result_of,
    save_model,
    start,
    tokenizer,
    wait_for_step,
    wait_until,
)

OPTIMIZER = {"class": "torch.optim.adamw.AdamW", "eps": 1e-8}


def settings_of(folder: Path, **training: Any) -> dict[str, Any]:
    spec = make_spec(folder, **training)
    train(spec, lambda metrics: None)
    used = json.loads((spec.work / SETTINGS_NAME).read_text())
    assert result_of(spec)["settings"] == used
    return used


def trained_tokens(folder: Path) -> int:
    """Count the trained tokens of every line of the stored plan, label by label."""
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
    assert used["optimizer"] == {**OPTIMIZER, "betas": [0.8, 0.85], "weight_decay": 0.3, "max_grad_norm": 0.7}
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
    mix, rejected, _ = build_training_mix(
        long, short, tokenizer(), training=training, template="gateau", progress=silent
    )
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


def settings_in_use(spec: TrainingSpec, *, steps: int) -> dict[str, Any]:
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
    return {**OPTIMIZER, "betas": [0.9, 0.95], "weight_decay": decay, "max_grad_norm": 1.0}


def in_half_precision(settings: dict[str, Any]) -> bool:
    """bfloat16 weights with float32 master weights."""
    kinds = settings["model"]["weights"], settings["model"]["master_weights"]
    return kinds == (["bfloat16"], ["float32"]) and settings["deepspeed"]["bfloat16"]


@pytest.mark.long
def test_gateau_7b(tmp_path: Path) -> None:
    spec = preset(tmp_path, "gateau-7b", rows=2_000, batch_size=4)
    used = settings_in_use(spec, steps=2)
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
    used = settings_in_use(spec, steps=2)
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
    used = settings_in_use(spec, steps=0)
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
    [step], tokens = log_of(spec), pl.read_parquet(spec.mix)["input_ids"].list.len().sum()
    assert 0 < step["loss"] < 10
    assert (step["step"], step["total"], step["tokens"]) == (1, 1, tokens)


def test_the_card_of_a_training(tmp_path: Path) -> None:
    spec = replace(
        make_spec(tmp_path, max_steps=3, skip={"length": 500}, preset="skipalign", deepspeed=None),
        provenance={"Selection": "preset robust | alpha 0.5"},
    )
    train(spec, lambda metrics: None)
    card = (spec.output / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["library_name"] == "transformers"
    assert "base_model" not in front  # a folder of this machine is no name for others
    assert str(tmp_path) not in card
    lines = card.splitlines()
    for line in (
        "| Base model | base |",
        "| Selection | preset robust &#124; alpha 0.5 |",
        "| Optimiser steps | 3 |",
        "| Sequences, all epochs | 12 |",
        '| skip | {"strategy": "outer", "length": 500, "probability": 0.5} |',
        "| preset | skipalign |",
        "| weight_decay | 0.0 |",  # as the preset says, and not off
        "| learning_rate | 0.005 |",
        f"| torch | {version('torch')} |",
        f"| transformers | {transformers.__version__} |",
    ):
        assert line in lines
    assert read_plan(spec.output / "batch_plan.parquet") == plan_of(spec, read_mix(spec.mix))


def test_a_name_of_the_hub_is_linked(tmp_path: Path) -> None:
    spec = replace(make_spec(tmp_path), base_model="meta-llama/Llama-2-7b-hf", revision="main", rope_theta=2e6)
    card = model_card(spec, plan_of(spec, read_mix(spec.mix)), [])
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "meta-llama/Llama-2-7b-hf"
    assert "| Base model | meta-llama/Llama-2-7b-hf, revision main |" in card
    assert "| rope_theta | 2e+06 |" in card


def test_names_bring_no_markup_into_the_card(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> | `code` [link](http://x) **bold**\n\n# heading"
    spec = replace(make_spec(tmp_path), base_model="<b>evil</b>", revision=evil, provenance={"Selection <i>": evil})
    card = model_card(spec, plan_of(spec, read_mix(spec.mix)), [])
    front, body = card.split("---\n", 2)[1:]
    assert yaml.safe_load(front)["base_model"] == "<b>evil</b>", "data there, not text"
    assert not any(mark in body for mark in ("<", "](", "`", "**", "\n# heading"))
    (row,) = [line for line in body.splitlines() if line.startswith("| Selection")]
    assert row.count("|") == 3 and "&lt;img src=x onerror=alert(1)&gt;" in row
