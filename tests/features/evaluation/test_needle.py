"""The needle grid against a slow twin: own prompts and full logits."""

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.features.evaluation.benchmark import MODELS, Materials, Measured
from gateau_dagster.features.evaluation.benchmarks.needle import (
    NEEDLE,
    Haystack,
    Needle,
    NeedleOptions,
    NeedlePair,
    build_haystack,
    insert_needle,
    needle_chart,
    needle_heatmaps,
    score_answer,
    sentences_of,
)
from gateau_dagster.models import forward
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.progress import Progress, silent
from tests.features.evaluation.builders import loaded, sample, vocabulary
from tests.kit.error_codes import refused
from tests.kit.project import configured

# Needles in a haystack in a sentence and in heatmaps.


TABLE = pl.DataFrame(
    [("base", 1000, 1.0, 4, 0.25, 1.0), ("base", 500, 0.0, 4, 0.75, 1.0), ("base", 500, 1.0, 4, 1.0, 1.0)],
    schema=tables.schema(NEEDLE),
    orient="row",
)


def test_heatmap_has_depth_down_and_length_across_and_gaps_stay_blank() -> None:
    left, right = needle_heatmaps(TABLE).axes
    assert left.images[0].get_clim() == (0, 1), "models share one scale"
    grid = np.ma.getdata(np.ma.asarray(left.images[0].get_array()))
    np.testing.assert_array_equal(grid, [[0.75, np.nan], [1.0, 0.25]])
    assert [text.get_text() for text in left.texts] == ["75 %", "100 %", "25 %"]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["500", "1,000"]
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["0", "100"]
    assert right.texts[0].get_text() == "checkpoint: not measured"


def test_the_chart_begins_with_the_longest_prompts_and_takes_the_mean_over_depths() -> None:
    found = [(each.name, each.value, each.reference) for each in needle_chart(TABLE).amounts]
    assert found == [("1,000 base", 0.25, True), ("500 base", 0.875, True)]


KEYS, VALUES = vocabulary()[100:103], vocabulary()[110:114]
TEXTS = [sample(i, context=300).context.replace(" ", " . ", 40) for i in range(3)]
OPTIONS = NeedleOptions(
    lengths=[96, 48],
    depths=[0.0, 0.5, 1.0],
    repeats=2,
    fact=" note {key} {value} . ",
    question="recall {key}",
    answer="{key} {value} .",
    pairs=[NeedlePair(key=key, values=VALUES) for key in KEYS],
)


def _needle(options: NeedleOptions = OPTIONS, *, max_length: int = 96, seed: int = 1) -> Needle:
    config = configured(scoring={"max_length": max_length, "template": "gateau"}, training={"seed": seed})
    return Needle(config, options)


def _prompts(options: NeedleOptions = OPTIONS, *, length: int = 96, depth: float = 0.5, seed: int = 1) -> list[Prompt]:
    hay = build_haystack(loaded().tokenizer, TEXTS, tokens=4 * 96)
    return _needle(options, seed=seed).prompts(loaded(), hay, length=length, depth=depth)


def _measured(benchmark: Needle, name: str = "base", progress: Progress = silent) -> Measured:
    given = Materials(
        config=benchmark.config,
        reads={"raw_long_sft"},
        shards=lambda *_: iter([pl.DataFrame({"context": TEXTS})]),
        samples=lambda _: (),
        model={name: loaded()}.__getitem__,
        progress=progress,
    )
    return benchmark.measure(given, name)


def _grid(options: NeedleOptions = OPTIONS, *, max_length: int = 96, progress: Progress = silent) -> Measured:
    benchmark = _needle(options, max_length=max_length)
    return benchmark.compare({"base": _measured(benchmark, progress=progress)})


def _slow(ids: list[int], answer: int) -> tuple[bool, float]:
    """Whether a greedy reader with the true past says the last `answer` tokens, and their mean NLL."""
    with torch.no_grad():
        logits = loaded().model(input_ids=torch.tensor([ids])).logits[0].double()
    nll, right = 0.0, True
    for place in range(len(ids) - answer, len(ids)):
        chances = torch.softmax(logits[place - 1], -1).tolist()
        right = right and chances[ids[place]] == max(chances)
        nll -= math.log(chances[ids[place]])
    return right, nll / answer


def _read(ids: tuple[int, ...]) -> str:
    return str(loaded().tokenizer.decode(list(ids)))


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_prompt_has_its_length_one_fact_at_its_depth_and_no_other_word_of_the_key(depth: float) -> None:
    for prompt in _prompts(depth=depth):
        assert len(prompt.ids) == 96
        key, value, _ = _read(prompt.response).split()
        context = _read(prompt.context).split()
        fact = ["note", key, value, "."]
        place = next(i for i in range(len(context)) if context[i : i + 4] == fact)
        assert place == round(depth * (len(context) - 4))
        assert context.count(key) == 1
        assert f"recall {key}" in _read(prompt.suffix)


def test_grid_against_the_slow_twin() -> None:
    result = _grid()
    lines = []
    for length in (48, 96):
        for depth in OPTIONS.depths:
            scores = [_slow(list(p.ids), len(p.response)) for p in _prompts(length=length, depth=depth)]
            right, nll = zip(*scores, strict=True)
            lines.append(("base", length, depth, 2, sum(right) / 2, sum(nll) / 2))
    want = pl.DataFrame(lines, schema=tables.schema(NEEDLE), orient="row")
    assert result.table.schema == want.schema
    assert result.table.drop("answer_nll").equals(want.drop("answer_nll"))
    assert result.table["answer_nll"].to_list() == pytest.approx(want["answer_nll"].to_list(), rel=1e-5)
    assert result.rejected == []


def test_an_answer_is_found_only_when_every_token_is_the_likeliest() -> None:
    prompt = _prompts()[0]
    ids = list(prompt.prefix + prompt.context + prompt.suffix)
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(loaded().model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    said = tuple(ids[-4:])
    assert score_answer(loaded(), replace(prompt, response=said))[0]
    for place in range(4):
        wrong = list(said)
        wrong[place] = (wrong[place] + 1) % 400
        assert not score_answer(loaded(), replace(prompt, response=tuple(wrong)))[0]


def test_needles_depend_on_the_seed_alone_and_repeats_differ() -> None:
    assert _prompts() == _prompts()
    assert _prompts() != _prompts(seed=2)
    first, second = _prompts()
    assert first.context != second.context
    more = _prompts(OPTIONS.model_copy(update={"repeats": 5, "lengths": [7]}))
    assert more[:2] == _prompts()


def test_lengths_that_cannot_be_made_are_skipped_with_their_reason() -> None:
    options = OPTIONS.model_copy(update={"lengths": [4, 64, 500]})
    seen = []
    result = _grid(
        options, max_length=100, progress=lambda done, total, unit, note="": seen.append((done, total, unit))
    )
    assert result.table["length"].unique().to_list() == [64]
    assert [reject.sample_id for reject in result.rejected] == ["base, length=4", "base, length=500"]
    assert "more than 4: raise" in result.rejected[0].reason
    assert "more than the 100 the model is shown" in result.rejected[1].reason
    assert seen[-1] == (2, 3, "lengths")


def test_no_length_at_all_is_an_error() -> None:
    with refused("evaluation.length", "48.*20"):
        _grid(max_length=20)


def test_out_of_memory_skips_the_length_and_other_faults_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = forward.response_states

    def small(model: object, prompts: list[Prompt]) -> torch.Tensor:
        if prompts[0].length > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(loaded(), prompts)

    monkeypatch.setattr(forward, "response_states", small)
    result = _grid()
    assert result.table["length"].unique().to_list() == [48]
    assert result.rejected[0].reason.startswith("out of memory on a prompt of 96 tokens")
    assert result.rejected[0].may_pass

    def broken(model: object, prompts: list[Prompt]) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(forward, "response_states", broken)
    with pytest.raises(RuntimeError, match="mat1"):
        _grid()


def test_other_braces_in_a_template_are_left_alone_and_an_empty_answer_is_an_error() -> None:
    options = OPTIONS.model_copy(update={"question": "recall {key} {}"})
    assert _prompts(options)
    empty = OPTIONS.model_copy(update={"answer": "{value}", "pairs": [NeedlePair(key=KEYS[0], values=["", ""])]})
    with refused("evaluation.length"):
        _prompts(empty)


def test_the_first_documents_are_the_haystack_and_each_model_is_asked_for_once() -> None:
    read, asked = [], []

    def shards(asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        for shard in range(9):
            read.append((asset, *columns, shard))
            yield pl.DataFrame({"context": TEXTS * 50})

    def model(name: str) -> LoadedModel:
        asked.append(name)
        return loaded(asked.index(name))

    benchmark = _needle()
    materials = Materials(
        config=benchmark.config, reads={"raw_long_sft"}, shards=shards, samples=lambda _: (), model=model
    )
    table = benchmark.compare({name: benchmark.measure(materials, name) for name in MODELS}).table
    assert read == 2 * [("raw_long_sft", "context", 0), ("raw_long_sft", "context", 1)]
    assert asked == ["base", "checkpoint"] == table["model"].unique(maintain_order=True).to_list()
    assert table.filter(model="base").equals(_grid().table)


def test_a_variant_is_scored_by_each_of_the_grid_s_needles() -> None:
    table = _measured(_needle(), "robust-0.1").table
    assert table.columns[:3] == tables.schema(tables.SCORES).names() and table["question_id"].is_unique().all()
    assert set(table["value"]) <= {0.0, 1.0} and table["question_id"][0] == "48-0-0"
    shares = table.group_by("group", maintain_order=True).agg(pl.col("value").mean())
    wanted = _grid().table.group_by("length", maintain_order=True).agg(pl.col("accuracy").mean())
    assert shares["group"].to_list() == ["48", "96"] and shares["value"].to_list() == wanted["accuracy"].to_list()


# Haystacks: what is kept, what is cut out, and where the needle goes.


_HAY = Haystack(sentences=(("one two. ", (1, 2)), ("Lisbon is old.\n", (3, 4, 5)), ("Lisbons? ", (6,)), ("x", (7,))))


@given(hay=st.lists(st.integers(0, 5), max_size=30), depth=st.floats(0, 1))
def test_the_needle_is_whole_and_at_its_depth(hay: list[int], depth: float) -> None:
    joined = insert_needle(hay, [100, 101], depth=depth)
    place = joined.index(100)
    assert joined[place + 1] == 101
    assert [token for token in joined if token < 100] == hay
    assert abs(place - depth * len(hay)) <= 0.5


@pytest.mark.parametrize("key", ["Lisbon", "lisbon", " LISBON "])
def test_sentences_that_name_the_key_are_out_and_longer_words_stay(key: str) -> None:
    assert _HAY.without(".*") == _HAY, "a key is no pattern"
    assert [text for text, _ in _HAY.without(key).sentences] == ["one two. ", "Lisbons? ", "x"]


def test_tokens_go_round_from_a_drawn_sentence() -> None:
    cycle = [1, 2, 3, 4, 5, 6, 7] * 4
    for seed in range(5):
        taken = list(_HAY.tokens(17, random.Random(seed)))
        start = cycle.index(taken[0])
        assert taken == cycle[start : start + 17]
    assert {_HAY.tokens(1, random.Random(seed)) for seed in range(30)} == {(1,), (3,), (6,), (7,)}
    assert Haystack(sentences=()).tokens(0, random.Random(0)) == ()


def test_no_hay_is_an_error_with_a_cure() -> None:
    with refused("evaluation.no_text"):
        _HAY.without("x").without("one").without("lisbon").without("lisbons").tokens(3, random.Random(0))


def test_sentences_give_the_text_back_and_stop_when_there_is_enough() -> None:
    words = vocabulary()[:60]
    text = " ".join(words[:20]) + " .\n" + " ".join(words[20:40]) + "! " + " ".join(words[40:]) + "\n"
    tokenizer = loaded().tokenizer
    hay = build_haystack(tokenizer, [text, "", text], tokens=10_000)
    assert "".join(part for part, _ in hay.sentences) == text + text
    assert [len(ids) for _, ids in hay.sentences] == [21, 20, 20] * 2
    assert len(build_haystack(tokenizer, [text, text], tokens=22).sentences) == 2


@given(text=st.text(alphabet="a.!。 \n\t", max_size=40))
def test_a_sentence_ends_at_the_first_mark_before_white_space(text: str) -> None:
    slow = re.compile(r".+?(?:[.!?。！？]+\s+|\n+|$)", re.DOTALL)
    assert list(sentences_of(text)) == [match.group() for match in slow.finditer(text)]


def test_a_run_of_points_is_read_once() -> None:
    """Read again from each of its points it would take the better part of an hour."""
    points = "." * 500_000
    assert list(sentences_of(f"Contents {points} 1\nA part {points}")) == [
        f"Contents {points} ",
        "1\n",
        f"A part {points}",
    ]
