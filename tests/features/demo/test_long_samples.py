import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.demo.config import SECTION, DemoConfig
from gateau_dagster.features.demo.language import (
    ATTRIBUTES,
    VALUES,
    Fact,
    fact_words,
    recall_instruction,
    recall_response,
)
from gateau_dagster.features.demo.pair import LONG_WINDOW, SHORT_WINDOW
from gateau_dagster.features.demo.prepare import (
    FAR_KINDS,
    KINDS,
    demo_samples,
    demo_short_chat,
    embedded_demo,
    write_demo_samples,
    write_demo_short_chat,
    write_jsonl,
)
from gateau_dagster.features.evaluation.benchmarks.needle import NeedleOptions
from gateau_dagster.features.evaluation.registry import configured_benchmarks
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from gateau_dagster.selection.forecast import forecast
from tests.selection.builders import ranking

SAMPLES = demo_samples(200, 7)


@pytest.fixture(scope="module")
def many() -> list[dict[str, str]]:
    return demo_samples(1000, 3)


def places(sample: dict[str, str]) -> dict[str, int]:
    """Tokens from each fact's start to the context's end, by attribute: a slow search of the text."""
    words = sample["context"].split()
    return {words[index + 1]: len(words) - index for index, word in enumerate(words) if word == "note"}


def by_kind(*kinds: str) -> list[dict[str, str]]:
    return [sample for sample in SAMPLES if sample["source"] in kinds]


def test_records_are_complete_and_the_kinds_take_turns() -> None:
    assert Counter(sample["source"] for sample in SAMPLES) == dict.fromkeys(KINDS, 40)
    assert len({sample["id"] for sample in SAMPLES}) == 200
    assert all(set(sample) == {"id", "source", "context", "instruction", "response"} for sample in SAMPLES)
    assert set(FAR_KINDS) < set(KINDS)


def test_every_recall_is_answered_by_the_context_and_each_attribute_stands_once() -> None:
    for sample in by_kind("near_fact", *FAR_KINDS):
        words = sample["context"].split()
        facts = [(words[i + 1], words[i + 2]) for i, word in enumerate(words) if word == "note"]
        assert len(facts) == len(dict(facts))
        asked = sample["instruction"].split()[1:]
        assert sample["response"].split() == [word for name in asked for word in (name, dict(facts)[name], ".")]


def test_far_facts_are_out_of_the_short_windows_sight_and_near_ones_at_the_end() -> None:
    for sample in by_kind(*FAR_KINDS):
        assert min(places(sample)[name] for name in sample["instruction"].split()[1:]) > SHORT_WINDOW + 64
    for sample in by_kind("near_fact"):
        assert max(places(sample)[name] for name in sample["instruction"].split()[1:]) <= 128


def test_one_far_fact_or_several() -> None:
    assert {len(sample["instruction"].split()) for sample in by_kind("far_fact")} == {2}
    assert {len(sample["instruction"].split()) for sample in by_kind("far_facts")} == {3, 4}


def test_responses_without_context_share_no_fact_with_it() -> None:
    values = {value for group in VALUES.values() for value in group}
    for sample in by_kind("no_context", "noisy"):
        assert sample["instruction"].startswith("tell about ")
        assert not values & set(sample["response"].split())
    about = [sample["instruction"].split()[2] == sample["response"].split()[1] for sample in by_kind("no_context")]
    assert all(about)


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_of_every_kind_have_the_same_lengths_and_distractors(kind: str, many: list[dict[str, str]]) -> None:
    """Else a ranking by length would find the kinds."""
    everything = [sample for sample in many if sample["source"] == kind]
    lengths = [len(sample["context"].split()) for sample in everything]
    assert 500 <= min(lengths) < 600 and 1250 < max(lengths) <= 1410
    assert sum(lengths) / len(lengths) == pytest.approx(950, abs=50)
    assert max(lengths) + 40 < LONG_WINDOW
    asked = {"far_fact": 1, "no_context": 0, "noisy": 0}
    if kind in asked:
        counts = {len(places(sample)) - asked[kind] for sample in everything}
        assert counts == set(range(4, 11))


def test_the_seed_decides_and_a_larger_set_starts_with_the_smaller_one() -> None:
    assert demo_samples(5, 7) == SAMPLES[:5]
    assert demo_samples(5, 8)[0]["context"] != SAMPLES[0]["context"]


def test_the_file_holds_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "new" / "long.jsonl"
    write_demo_samples(path, 5, 7)
    assert [json.loads(line) for line in path.read_text().splitlines()] == SAMPLES[:5]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    write_demo_samples(path, 1, 7)
    before = path.read_text()
    with pytest.raises(TypeError):
        write_jsonl(path, [{"id": "fine"}, {"id": object()}])
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["long.jsonl"]


CHATS = demo_short_chat(200, 5)


def test_conversations_alternate_and_nothing_is_empty() -> None:
    assert len({chat["id"] for chat in CHATS}) == 200
    for chat in CHATS:
        turns = chat["conversations"]
        assert [turn["from"] for turn in turns] == ["human", "gpt"] * (len(turns) // 2)
        assert 2 <= len(turns) <= 6
        assert all(turn["value"].strip() for turn in turns)


def test_recalls_are_answered_by_the_facts_just_told() -> None:
    recalls = 0
    for chat in CHATS:
        pairs = zip(chat["conversations"][::2], chat["conversations"][1::2], strict=True)
        for asked, answered in pairs:
            if "recall" not in asked["value"]:
                assert asked["value"].startswith("tell about ")
                continue
            recalls += 1
            told, question = asked["value"].split("\n\n")
            words = told.split()
            facts = dict(zip(words[1::4], words[2::4], strict=True))
            wanted = [word for name in question.split()[1:] for word in (name, facts[name], ".")]
            assert answered["value"].split() == wanted
    assert 100 < recalls < 300


def test_the_seed_decides_and_the_file_holds_the_conversations(tmp_path: Path) -> None:
    assert demo_short_chat(3, 5) == CHATS[:3] != demo_short_chat(3, 6)
    path = tmp_path / "chat.jsonl"
    write_demo_short_chat(path, 3, 5)
    assert [json.loads(line) for line in path.read_text().splitlines()] == CHATS[:3]


def test_the_embedded_demo_needs_no_file_and_knows_its_truth(tmp_path: Path) -> None:
    config = embedded_demo(tmp_path)
    assert SECTION.of(config) == DemoConfig()
    assert config.folder == tmp_path and set(config.models) == {"short", "long"}
    assert config.selection.ground_truth
    assert Path(config.located_long_sft.path).is_relative_to(tmp_path / ".gateau")  # type: ignore[arg-type]


def test_the_demo_compares_methods_that_read_what_is_there_anyway(tmp_path: Path) -> None:
    """No further model is loaded, and no table made, for the report's section about methods."""
    config = embedded_demo(tmp_path)
    chosen = chosen_methods(config)
    assert {*chosen} == {config.selection.method, *config.selection.compare} and len(config.selection.compare) >= 3
    assert not sample_tables(config)
    read = {asset for one in chosen.values() for asset in one.reads()}
    assert read <= {"raw_long_sft", "perplexity/short", "perplexity/long", "cam", "combined_scores"}


@pytest.mark.parametrize("seed", range(3))
def test_the_forecast_says_of_the_demo_that_random_samples_do_as_well(tmp_path: Path, seed: int) -> None:
    """With a pair that ranks and classifies rightly. The best samples only would leave out most responses."""
    classes = ("closed_book", "near", "one_far", "several_far", "unpredictable")
    dependency: dict[str, str] = dict(zip(KINDS, classes, strict=True))
    records = sorted(demo_samples(200, seed), key=lambda record: record["source"] not in FAR_KINDS)
    samples = ranking(
        [record["source"] for record in records],
        dependency=[dependency[record["source"]] for record in records],
        response_tokens=[len(record["response"].split()) for record in records],
    )
    selection = embedded_demo(tmp_path).selection
    given: dict[str, Any] = {"ground_truth": selection.ground_truth, "trains_other": True}
    sums = pl.DataFrame(schema=dict.fromkeys(("far_sum", "far_tokens", "near_sum", "near_tokens"), pl.Float64))
    found = forecast(samples, selection, sums, **given)
    assert (found.verdict, found.far.value, found.chosen, found.chosen_far) == ("level", 0.4, 60, 30)
    assert forecast(samples, selection.by_rank(), sums, **given).verdict == "do_not_select"


def test_the_needle_is_a_fact_of_the_language(tmp_path: Path) -> None:
    needle = configured_benchmarks(embedded_demo(tmp_path))["needle"].options
    assert isinstance(needle, NeedleOptions) and needle.pairs is not None
    assert {pair.key: tuple(pair.values) for pair in needle.pairs} == {name: VALUES[name] for name in ATTRIBUTES}
    for pair in needle.pairs:
        for value in pair.values:
            fact = Fact(attribute=pair.key, value=value)
            names = {"key": pair.key, "value": value}
            assert needle.fact.format(**names).split() == fact_words(fact)
            assert needle.question.format(**names).split() == recall_instruction([fact])
            assert needle.answer.format(**names).split() == recall_response([fact])
