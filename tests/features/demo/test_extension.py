"""theta_B from theta_A: the texts that it learns from, and what the training changes."""

import json
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, LlamaForCausalLM

from gateau_dagster.features.demo.language import VALUES, build_tokenizer
from gateau_dagster.features.demo.pair import LONG_LENGTHS, TOKENS_PER_STEP, extend, pair_config, texts, write_texts
from gateau_dagster.training import train as run
from gateau_dagster.training.launch import TrainingSpec
from gateau_dagster.training.metrics import Report

WINDOW, STEPS = 2048, 2


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained theta_A of 256 tokens."""
    folder = tmp_path_factory.mktemp("extension") / "short"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(pair_config(256, 1e4)).save_pretrained(folder)
    build_tokenizer(256).save_pretrained(folder)
    return folder


def extended(short: Path, folder: Path, losses: list[float]) -> Path:
    folder.mkdir()
    extend(short, folder, window=WINDOW, theta=1e6, steps=STEPS, rate=3e-3, seed=5, after_step=losses.append)
    return folder


def test_it_trains_on_the_cpu_where_there_is_a_gpu(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[bool] = []

    def train(spec: TrainingSpec, report: Report, *, cpu: bool = False) -> None:
        devices.append(cpu)

    monkeypatch.setattr(run, "train", train)
    extended(short, tmp_path / "made", [])
    assert devices == [True]


def test_theta_b_is_theta_a_trained_on_with_a_larger_base(short: Path, tmp_path: Path) -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # pyright: ignore
    losses: list[float] = []
    folder = extended(short, tmp_path / "made", losses)

    assert len(losses) == STEPS and losses[1] < losses[0]
    config = AutoConfig.from_pretrained(folder / "output")
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (WINDOW, 1e6)
    first, trained = (load_file(at / "model.safetensors") for at in (short, folder / "output"))
    assert first.keys() == trained.keys() and not any(torch.equal(first[key], trained[key]) for key in first)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # pyright: ignore
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])

    mix = pl.read_parquet(folder / "mix.parquet")
    tokens = {
        origin: mix.filter(pl.col("origin") == origin)["block_tokens"].list.sum().sum() for origin in ("long", "short")
    }
    assert sum(tokens.values()) == pytest.approx(STEPS * TOKENS_PER_STEP, abs=WINDOW)
    assert tokens["long"] > tokens["short"]


def test_texts_are_as_long_as_asked_with_bos_and_eos_around_them() -> None:
    tokenizer = build_tokenizer(max(LONG_LENGTHS))
    made = list(texts(np.random.default_rng(0), tokens=6000, lengths=LONG_LENGTHS))
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in made]
    assert [len(ids) + 2 for ids in encoded] == [2048, 2048, 1024] * 2
    assert not any(set(tokenizer.all_special_ids) & set(ids) for ids in encoded)


def test_what_is_asked_is_mostly_stated_before() -> None:
    """All but the twentieth of the values that responses name stand in the document of their text."""
    named = {value for values in VALUES.values() for value in values}
    stated: list[bool] = []
    for text in texts(np.random.default_rng(1), tokens=60_000, lengths=(2048,)):
        document, asked = text.split("Instruction:", 1)
        stated += [word in document.split() for word in asked.split() if word in named]
    assert len(stated) > 200 and 0.9 < sum(stated) / len(stated) < 1


def test_the_same_generator_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_texts(tmp_path / name, np.random.default_rng(3), tokens=1000, lengths=(160, 512))
    one, two = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one", "two"))
    assert one == two and all(set(json.loads(line)) == {"text"} for line in one.splitlines())
