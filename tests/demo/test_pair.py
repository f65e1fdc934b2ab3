import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.demo import pair
from gateau_dagster.demo.rows import Batch, Stage


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of five steps."""
    stage = Stage(name="quick", steps=3, shapes=((2, 64),), facts=(2, 2), filler=True)
    monkeypatch.setattr(pair, "SHORT_STAGES", (stage,))
    monkeypatch.setattr(pair, "LONG_STEPS", 2)


@pytest.fixture
def copied(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a theta_B that is theta_A, where what it learns is not the question."""

    def extend(short: Path, folder: Path, *, steps: int, after_step: Callable[[float], None], **_: Any) -> None:
        shutil.copytree(short, folder / "output")
        for _step in range(steps):
            after_step(1.0)

    monkeypatch.setattr(pair, "extend", extend)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_the_pair_loads_with_its_windows_bases_and_tokenizer(quick: None, tmp_path: Path) -> None:
    pair.build_pair(tmp_path / "pair")
    for name, window, theta in (("short", 256, 1e4), ("long", 2048, 1e6)):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "pair" / name)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "pair" / name)
        assert model.config.max_position_embeddings == tokenizer.model_max_length == window
        assert model.config.rope_parameters["rope_theta"] == theta
        assert model.dtype == torch.float32
        assert model.get_input_embeddings().num_embeddings == len(tokenizer)
        assert model.config.bos_token_id == tokenizer.bos_token_id


def test_the_seed_decides_and_the_callers_random_numbers_stay(quick: None, tmp_path: Path) -> None:
    state = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # pyright: ignore
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        pair.build_pair(tmp_path / name, seed=seed)
    assert torch.equal(torch.random.get_rng_state(), state[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state[1:]  # pyright: ignore
    for part in ("short", "long"):
        one, two, three = (weights(tmp_path / name / part) for name in ("one", "two", "three"))
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert not torch.equal(one["model.norm.weight"], three["model.norm.weight"])
    assert not torch.equal(
        weights(tmp_path / "one" / "short")["model.norm.weight"],
        weights(tmp_path / "one" / "long")["model.norm.weight"],
    )


def test_progress_counts_the_steps(copied: None, tmp_path: Path) -> None:
    seen: list[tuple[float, float | None, str, str]] = []

    def record(done: float, total: float | None, unit: str, note: str = "") -> None:
        seen.append((done, total, unit, note))

    pair.build_pair(tmp_path / "pair", progress=record)
    assert [entry[:3] for entry in seen] == [(step, 5, "steps") for step in range(1, 6)]
    assert seen[0][3].startswith("quick, loss ")


def test_an_interrupted_build_leaves_what_was_there(copied: None, tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    pair.build_pair(folder, seed=1)
    before = weights(folder / "long")

    def interrupt(done: float, total: float | None, unit: str, note: str = "") -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.build_pair(folder, seed=2, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]
    assert all(torch.equal(before[key], value) for key, value in weights(folder / "long").items())
    assert pair.pair_is_current(folder, seed=1)


def test_a_pair_of_another_seed_or_recipe_is_not_current_and_is_replaced(
    copied: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pair"
    assert not pair.pair_is_current(folder)
    pair.build_pair(folder)
    assert pair.pair_is_current(folder) and not pair.pair_is_current(folder, seed=1)
    monkeypatch.setattr(pair, "RECIPE_VERSION", "other")
    assert not pair.pair_is_current(folder)
    pair.build_pair(folder)
    assert pair.pair_is_current(folder)
    assert json.loads((folder / "recipe.json").read_text())["recipe"] == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_the_loss_is_the_weighted_mean_of_the_next_tokens_nll() -> None:
    torch.manual_seed(0)
    model = pair.LlamaForCausalLM(pair.pair_config(256, 1e4))
    ids, weight = torch.randint(0, 423, (2, 7)), torch.rand(2, 7)
    logits = model(input_ids=ids).logits.double().detach()
    total = sum(
        -torch.log(torch.softmax(logits[row, place - 1], -1))[ids[row, place]] * weight[row, place]
        for row in range(2)
        for place in range(1, 7)
    )
    loss = pair.batch_loss(model, Batch(ids=ids.numpy(), weights=weight.numpy()))
    assert loss.item() == pytest.approx(float(total / weight[:, 1:].sum()), rel=1e-5)


def test_the_rate_falls_to_a_tenth_over_the_last_third() -> None:
    assert [pair.rate_factor(step, 100) for step in (0, 70, 85, 100)] == pytest.approx([1, 1, 0.55, 0.1])
