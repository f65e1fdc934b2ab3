"""The pair is built whole or not at all, and recall is measured by distance."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.demo import pair
from gateau_dagster.demo.language import VOCABULARY
from gateau_dagster.demo.pair import recall_at
from gateau_dagster.demo.rows import Batch, Stage


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe of five steps."""
    stage = Stage(name="quick", steps=3, shapes=((2, 64),), facts=(2, 2), filler=True)
    monkeypatch.setattr(pair, "SHORT_STAGES", (stage,))
    monkeypatch.setattr(pair, "LONG_STEPS", 2)


@dataclass(frozen=True, kw_only=True)
class Built:
    """Pairs `one` and `two` of the same seed and `three` of another; random numbers before and after."""

    folder: Path
    before: list[Any]
    after: list[Any]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("pairs")
    before = random_state()
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten(monkeypatch)
        for name, seed in (("one", 3), ("two", 3), ("three", 4)):
            pair.build_pair(folder / name, seed=seed)
    return Built(folder=folder, before=before, after=random_state())


def random_state() -> list[Any]:
    return [torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # pyright: ignore


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same recipe with a theta_B that is theta_A, where what it learns is not the question."""
    shorten(monkeypatch)

    def extend(short: Path, folder: Path, *, steps: int, after_step: Callable[[float], None], **_: Any) -> None:
        shutil.copytree(short, folder / "output")
        for _step in range(steps):
            after_step(1.0)

    monkeypatch.setattr(pair, "extend", extend)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_the_pair_loads_with_its_windows_bases_and_tokenizer(built: Built) -> None:
    for name, window, theta in (("short", 256, 1e4), ("long", 2048, 1e6)):
        model = AutoModelForCausalLM.from_pretrained(built.folder / "one" / name)
        tokenizer = AutoTokenizer.from_pretrained(built.folder / "one" / name)
        assert model.config.max_position_embeddings == tokenizer.model_max_length == window
        assert model.config.rope_parameters["rope_theta"] == theta
        assert model.dtype == torch.float32
        assert model.get_input_embeddings().num_embeddings == len(tokenizer)
        assert model.config.bos_token_id == tokenizer.bos_token_id


def test_the_seed_decides_and_the_callers_random_numbers_stay(built: Built) -> None:
    assert built.after == built.before
    for part in ("short", "long"):
        one, two, three = (weights(built.folder / name / part) for name in ("one", "two", "three"))
        assert all(torch.equal(one[key], two[key]) for key in one)
        assert not torch.equal(one["model.norm.weight"], three["model.norm.weight"])
    short, long = (weights(built.folder / "one" / part)["model.norm.weight"] for part in ("short", "long"))
    assert not torch.equal(short, long)


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
    folder.mkdir()
    for content in (None, "", "[" * 100_000):
        if content is not None:
            (folder / "recipe.json").write_text(content)
        assert not pair.pair_is_current(folder)
    pair.build_pair(folder)
    assert pair.pair_is_current(folder) and not pair.pair_is_current(folder, seed=1)
    monkeypatch.setattr(pair, "RECIPE_VERSION", "other")
    assert not pair.pair_is_current(folder)
    pair.build_pair(folder)
    assert pair.pair_is_current(folder)
    assert json.loads((folder / "recipe.json").read_text())["recipe"] == "other"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]"])
def test_a_pair_whose_recipe_cannot_be_read_is_not_current(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "recipe.json").write_bytes(content)
    assert not pair.pair_is_current(tmp_path)


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


class Reader:
    """Answers by searching the text, no further than `visible` tokens before the instruction."""

    def __init__(self, visible: int) -> None:
        self.visible = visible
        self.distances: list[int] = []

    def __call__(self, input_ids: torch.Tensor) -> Any:
        logits = torch.zeros((*input_ids.shape, len(VOCABULARY)))
        for row, ids in enumerate(input_ids.tolist()):
            words = [VOCABULARY[index] for index in ids]
            end, note = words.index("Instruction:") - 1, words.index("note")
            self.distances.append(end - note)
            assert words[-1] == words[note + 1]
            if end - note <= self.visible:
                logits[row, -1, ids[note + 2]] = 1.0
        return SimpleNamespace(logits=logits)


def test_a_reader_recalls_within_its_visible_and_not_beyond() -> None:
    reader: Any = Reader(visible=200)
    assert recall_at(reader, 128, repeats=25) == 1.0
    assert recall_at(reader, 512, repeats=25) == 0.0
    assert set(reader.distances) == {128 + 4, 512 + 4}
