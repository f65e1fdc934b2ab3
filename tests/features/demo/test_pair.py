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

from gateau_dagster.features.demo import pair
from gateau_dagster.features.demo.language import ATTRIBUTES, VALUES, VOCABULARY
from gateau_dagster.features.demo.pair import (
    ANSWER_WEIGHT,
    LONG_LENGTHS,
    LONG_WINDOW,
    SHORT_STAGES,
    SHORT_WINDOW,
    Batch,
    LanguageRow,
    Stage,
    batches,
    recall_at,
    training_row,
)


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
    for content in (None, b"", b"{", b"\xff", b"[]", b"[" * 100_000):
        if content is not None:
            (folder / "recipe.json").write_bytes(content)
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


ANSWERS = {*ATTRIBUTES, *(value for values in VALUES.values() for value in values)}


def rows(count: int) -> list[LanguageRow]:
    return [training_row(np.random.default_rng(seed), length=400, context=200, fact_count=8) for seed in range(count)]


def split(row: LanguageRow) -> tuple[list[str], list[tuple[list[str], list[str]]]]:
    """Context, and the instructions and responses after it; the last, which may be cut, is left out."""
    text = " ".join(row.words)
    assert text.startswith("<s> ### Input: ")
    context, *queries = text.removeprefix("<s> ### Input: ").split(" ### Instruction: ")
    pairs = [query.split(" ### Response: ") for query in queries[:-1]]
    return context.split(), [(asked.split(), answered.split()) for asked, answered in pairs]


def test_rows_have_the_form_of_the_scoring_prompt_and_the_asked_length() -> None:
    for row in rows(20):
        context, queries = split(row)
        assert len(row.words) == len(row.weights) == 400
        assert context.count("note") == 8 and 190 <= len(context) <= 200
        assert queries and all(asked[0] in ("recall", "tell") for asked, _ in queries)


def test_recalls_are_answered_by_the_context_but_for_a_few_that_cannot_be() -> None:
    known = absent = 0
    for row in rows(100):
        context, queries = split(row)
        facts = {context[i + 1]: context[i + 2] for i, word in enumerate(context) if word == "note"}
        for asked, answered in queries:
            if asked[0] != "recall":
                continue
            assert asked[1:] == answered[::3] and set(answered[2::3]) == {"."}
            for name, value in zip(answered[::3], answered[1::3], strict=True):
                known += facts.get(name) == value
                absent += name not in facts
                assert name not in facts or facts[name] == value
    assert absent / (known + absent) == pytest.approx(0.025, abs=0.015)


def test_answers_weigh_most_and_the_start_nothing() -> None:
    for row in rows(5):
        context_end = row.words.index("Instruction:")
        assert row.weights[0] == 0.0
        for index in range(context_end + 1, len(row.words)):
            in_response = "Response:" in row.words[context_end:index] and row.weights[index] not in (0.03,)
            if in_response and row.words[index] in ANSWERS:
                assert row.weights[index] == ANSWER_WEIGHT
        assert max(row.weights[:context_end]) < ANSWER_WEIGHT


def test_batches_cycle_through_the_shapes_and_hold_the_rows_ids() -> None:
    stage = Stage(name="small", steps=3, shapes=((2, 64), (1, 128)), facts=(2, 4), filler=True)
    made = list(batches(stage, np.random.default_rng(0)))
    assert [batch.ids.shape for batch in made] == [(2, 64), (1, 128), (2, 64)]
    assert all(batch.weights.shape == batch.ids.shape for batch in made)
    assert (made[0].ids.dtype, made[0].weights.dtype) == (np.int64, np.float32)
    assert [VOCABULARY[index] for index in made[0].ids[0, :3]] == ["<s>", "###", "Input:"]
    again = list(batches(stage, np.random.default_rng(0)))
    assert all((one.ids == two.ids).all() for one, two in zip(made, again, strict=True))


def test_a_stage_without_filler_has_facts_only_and_none_exceeds_its_model_s_window() -> None:
    assert max(length for stage in SHORT_STAGES for _, length in stage.shapes) == SHORT_WINDOW
    assert max(LONG_LENGTHS) == LONG_WINDOW
    stage = Stage(name="facts", steps=1, shapes=((4, 96),), facts=(8, 8), filler=False)
    (batch,) = batches(stage, np.random.default_rng(0))
    for ids in batch.ids:
        words = [VOCABULARY[index] for index in ids]
        assert words[3:35:4] == ["note"] * 8 and words[35:37] == ["###", "Instruction:"]
