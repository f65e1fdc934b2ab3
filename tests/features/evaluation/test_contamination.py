"""Slow obvious twins: words letter by letter, n-grams as tuples in sets."""

import gzip
import json
import os
import random
import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateau_dagster import tables
from gateau_dagster.data.near_duplicates import sketch
from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.contamination import (
    NEAR,
    OVERLAPS,
    PROMPT_QUESTIONS,
    SHINGLE_WORDS,
    UNTOUCHED,
    AskedTexts,
    HashIndex,
    ngrams,
    overlaps,
    shingles,
    touched,
    untouched_rows,
    without_touched,
    words,
)
from gateau_dagster.features.evaluation.statistics.experiment import Cost, Line, experiment_rows
from gateau_dagster.tables import schema
from tests.features.evaluation.experiment_builders import chosen, scores

_WORDS = [f"{first}{last}" for first in "abcdefghijklmnopqrst" for last in ("lpha", "eta", "o", "ümmel", "7", "ский")]


def drawn_words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def slow_words(text: str) -> list[str]:
    found, word = [], ""
    for char in [*unicodedata.normalize("NFKC", text).casefold(), " "]:
        written = unicodedata.category(char)[0] in "LNM"
        alone = written and any(
            name in unicodedata.name(char, "") for name in ("CJK", "IDEOGR", "HIRAGANA", "KATAKANA", "THAI", "LAO")
        )
        if written and not alone:
            word += char
            continue
        found += [each for each in (word, char if alone else "") if each]
        word = ""
    return found


def slow_ngrams(parts: Sequence[str], length: int) -> set[tuple[str, ...]]:
    found = set()
    for part in parts:
        words = slow_words(part)
        found |= {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
    return found


def slow_questions_ngrams(parts: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the n-grams of 13 words, or of all words of a part with 8 to 12."""
    found = set()
    for part in parts:
        length = min(13, len(slow_words(part)))
        found |= slow_ngrams([part], length) if length >= 8 else set()
    return found


# Hashes of words and n-grams against words and tuples of them: equal exactly where these are.


TEXTS = st.text(st.sampled_from("abIß1 éﬁ\u0301\n\t-'’.,_漢字かカー日々ที่한글½\u00a0 "), max_size=60)


def one_to_one(keys: Iterable[Hashable], hashes: Iterable[int]) -> bool:
    pairs = set(zip(keys, hashes, strict=True))
    return len(pairs) == len({key for key, _ in pairs}) == len({value for _, value in pairs})


@given(TEXTS)
@example("The café is OPEN, she said. the cafe\u0301\n\nis\u00a0open she said")
@example("“Ｔｈｅ ﬁrst” 中文，字。 the first 中 文 字 STRASSE straße")
@example(" \n...—\U000e0001\U0010ffff")
def test_words_are_those_of_the_twin(text: str) -> None:
    assert one_to_one(slow_words(text), words(text).tolist())


@given(TEXTS, st.integers(1, 5))
def test_ngrams_are_those_of_the_twin(text: str, length: int) -> None:
    plain = slow_words(text)
    tuples = [tuple(plain[start : start + length]) for start in range(len(plain) - length + 1)]
    assert one_to_one(tuples, ngrams(words(text), length).tolist())


def test_a_long_text_has_no_two_words_with_one_hash() -> None:
    text = " ".join(f"{letter}{number}" for letter in "abcdefgh" for number in range(4_000))
    hashes = words(text)
    assert np.unique(hashes).size == hashes.size == 32_000
    assert np.unique(ngrams(hashes, 13)).size == 32_000 - 12
    tail = text.index("h0 ")
    assert np.array_equal(words(text[tail:]), hashes[28_000:]), "wherever a word stands"


def test_ngrams_of_other_lengths_are_other_ones() -> None:
    text = words("a a a a a a")
    assert len({ngrams(text, length)[0] for length in range(1, 7)}) == 6


def test_a_sketch_estimates_the_share_of_common_shingles() -> None:
    one = drawn_words(1, 4000).split()
    other = [*one[:3000], *drawn_words(2, 1000).split()]
    first, second = (slow_ngrams([" ".join(text)], SHINGLE_WORDS) for text in (one, other))
    mine, others = (sketch(shingles(words(" ".join(text)))) for text in (one, other))
    assert mine.jaccard(others) == pytest.approx(len(first & second) / len(first | second), abs=0.12)


# Looking up many hashes at a time against sets.


@pytest.mark.parametrize("spread", [1, 1 << 40, 1 << 57], ids=["all in one place", "in some", "in all"])
@pytest.mark.parametrize("seed", range(8))
def test_the_texts_of_a_hash_are_found(seed: int, spread: int) -> None:
    drawn = np.random.default_rng(seed)

    def some(most: int) -> np.ndarray:
        return drawn.integers(0, 100, drawn.integers(0, most)).astype(np.uint64) * np.uint64(spread)

    texts = [np.unique(some(60)) for _ in range(drawn.integers(0, 30))]
    index = HashIndex.of(texts)
    for _ in range(20):
        wanted = some(80)
        expected = {number: len({*text} & {*wanted}) for number, text in enumerate(texts)}
        found, counts = index.common(wanted)
        assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == {n: c for n, c in expected.items() if c}
        assert found.tolist() == sorted(found.tolist())


def test_the_smallest_and_the_largest_hash_have_their_place() -> None:
    ends = np.array([0, 2**64 - 1], dtype=np.uint64)
    index = HashIndex.of([ends, ends[1:], ends[:0]])
    assert [each.tolist() for each in index.common(ends)] == [[0, 1], [2, 1]]
    assert [each.tolist() for each in index.common(ends[:1])] == [[0], [1]]
    assert [each.tolist() for each in index.common(ends[:0])] == [[], []]


# What is planted in the data is found, as a slow twin finds it, and nothing else is.


CHINESE = "敏捷的棕色狐狸跳过了懒狗然后它在树下休息直到太阳下山才回家"


def question(number: int, *turns: str, references: Sequence[str] = (), group: str = "") -> Question:
    """In a group of its own, unless a group is given."""
    return Question(
        question_id=f"q{number}",
        group=group or str(number),
        turns=turns,
        generation=Generation(max_new_tokens=8),
        references=tuple(references),
    )


def found_in(texts: Sequence[Sequence[str]], *questions: Question) -> dict[tuple[str, str], tuple[int, float, float]]:
    table = overlaps(((f"s{number}", parts) for number, parts in enumerate(texts)), AskedTexts.of(questions))
    assert table.schema == schema(OVERLAPS) and table.equals(table.sort("sample_id", "question_id"))
    return {(sample, asked): (*rest,) for sample, asked, *rest in table.iter_rows()}


def spaced(text: str) -> str:
    return "\n\n".join(text.split()).replace("\n\n", " \t", 5)


CHANGES = {
    "verbatim": str,
    "other case": str.upper,
    "other white space": spaced,
    "other punctuation": lambda text: "– ".join(f"«{word}»," for word in text.split()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", range(3), ids=["context", "instruction", "response"])
def test_planted_text_is_found_whatever_its_form(change, place: int) -> None:
    passage = drawn_words(1, 40)
    sample = [drawn_words(10 + part, 200) for part in range(3)]
    sample[place] = f"{sample[place][:501]} {change(passage)} {sample[place][501:]}"
    clean = [drawn_words(20 + part, 200) for part in range(3)]
    asked = question(7, f"{drawn_words(30, 60)} {passage} {drawn_words(31, 60)}", references=[drawn_words(32, 2)])
    found = found_in([clean, sample], asked, question(8, drawn_words(40, 300)))
    assert [*found] == [("s1", "q7")]
    shared, share, similarity = found["s1", "q7"]
    assert (shared, share) == (40 - 12, 28 / (160 - 12)) and 0 < similarity < NEAR


def test_messages_before_a_question_are_found() -> None:
    passage = drawn_words(1, 40)
    asked = replace(question(7, drawn_words(2, 20)), earlier=(("user", drawn_words(3, 20)), ("assistant", passage)))
    assert [*found_in([[passage]], asked)] == [("s0", "q7")]


def test_planted_chinese_is_found_by_its_characters() -> None:
    found = found_in([["前言。" + CHINESE[2:24] + "。后记", "问", "答"]], question(1, f"读：{CHINESE}？"))
    assert found["s0", "q1"][0] == 22 - 12
    assert found_in([["前言。" + CHINESE[2:14] + "。后记", "问", "答"]], question(1, f"读：{CHINESE}？")) == {}


def test_twelve_words_are_not_enough_and_none_reach_over_the_end_of_a_text() -> None:
    passage = drawn_words(1, 13).split()
    asked = question(1, f"{drawn_words(2, 30)} {' '.join(passage)} {drawn_words(3, 30)}")
    around = drawn_words(40, 20)
    assert found_in([[f"{around} {' '.join(passage[1:])} {around}"]], asked) == {}
    assert found_in([[f"{around} {' '.join(passage[:7])}", f"{' '.join(passage[7:])} {around}"]], asked) == {}
    assert found_in([[f"{around} {' '.join(passage)} {around}"]], asked)["s0", "q1"][0] == 1


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_many_questions_against_the_twin(seed: int) -> None:
    drawn = random.Random(seed)
    pool = [drawn_words(number, drawn.randint(2, 40)) for number in range(12)]

    def text() -> str:
        return " ".join(drawn.choices(pool, k=2)) + f" {drawn.random()}"

    questions = [question(number, text(), drawn.choice(pool), references=[text()]) for number in range(6)]
    samples = [[text(), text(), drawn.choice(pool)] for _ in range(6)]
    found = found_in(samples, *questions)
    of_questions = {each.question_id: slow_questions_ngrams([*each.turns, *each.references]) for each in questions}
    of_samples = [set().union(*(slow_ngrams(sample, length) for length in range(8, 14))) for sample in samples]
    for place, grams in enumerate(of_samples):
        for name, asked in of_questions.items():
            shared, share, similarity = found.pop((f"s{place}", name), (0, 0.0, NEAR))
            assert (shared, share) == (len(asked & grams), len(asked & grams) / max(1, len(asked)))
            assert shared or similarity >= NEAR
    assert not found


@pytest.mark.parametrize(("length", "is_found"), [(7, False), (8, True), (12, True)])
@pytest.mark.parametrize("reference", [False, True])
def test_a_short_question_or_answer_is_one_ngram(length: int, is_found: bool, reference: bool) -> None:
    short, long = drawn_words(1, length), drawn_words(2, 50)
    asked = question(1, long, references=[short]) if reference else question(1, long, short)
    found = found_in([[f"{drawn_words(3, 30)} {short} {drawn_words(4, 30)}"]], asked)
    assert bool(found) == is_found
    if is_found:
        assert found["s0", "q1"][:2] == (1, 1 / (50 - 12 + 1))


def test_the_prompt_of_a_benchmark_is_none_of_its_questions() -> None:
    prompt, answer = drawn_words(1, 30), drawn_words(2, 20)
    several = [
        question(number, f"{prompt} {drawn_words(10 + number, 40)}", references=[answer] if number else [], group="a")
        for number in range(PROMPT_QUESTIONS)
    ]
    sample = [[f"{drawn_words(3, 30)} {prompt} {drawn_words(4, 30)}"]]
    assert found_in(sample, *several) == {}
    assert len(found_in(sample, *several[1:])) == PROMPT_QUESTIONS - 1, "few questions may have a document in common"
    copied = f"{drawn_words(3, 30)} {drawn_words(15, 40)} {drawn_words(4, 30)}"
    assert [*found_in([[copied]], *several)] == [("s0", "q5")]
    assert len(found_in([[f"{drawn_words(3, 30)} {answer} {drawn_words(4, 30)}"]], *several)) == PROMPT_QUESTIONS - 1
    cells = [question(number, f"{prompt} {drawn_words(10 + number, 40)}") for number in range(PROMPT_QUESTIONS)]
    assert found_in(sample, *cells) == {}, "in whatever groups they are"
    half = [
        *several[: PROMPT_QUESTIONS // 2],
        *(question(30 + n, drawn_words(60 + n, 40), group="a") for n in range(10)),
    ]
    assert len(found_in(sample, *half)) == PROMPT_QUESTIONS // 2


def test_a_near_duplicate_without_a_common_ngram_is_found() -> None:
    text = drawn_words(1, 600).split()
    changed = [f"other{place}" if place % 12 == 0 else word for place, word in enumerate(text)]
    found = found_in(
        [[" ".join(changed)], [drawn_words(2, 600)]], question(1, " ".join(text)), question(2, drawn_words(3, 600))
    )
    assert [*found] == [("s0", "q1")]
    shared, share, similarity = found["s0", "q1"]
    assert shared == share == 0 and similarity == pytest.approx(0.6, abs=0.1)


def test_nothing_has_nothing_in_common() -> None:
    assert found_in([["a text", "", ""]]) == {}
    assert found_in([], question(1, drawn_words(1, 50))) == {}
    assert found_in([["", "", ""]], question(1, "", references=[""]), question(2, drawn_words(1, 50))) == {}
    assert AskedTexts.of([]).prompt_ngrams == 0


def test_the_rows_are_those_of_the_samples_in_whatever_order() -> None:
    asked = AskedTexts.of([question(1, drawn_words(1, 50))])
    samples = [(f"s{number}", [drawn_words(number, 50)]) for number in (1, 2, 3)]
    assert overlaps(samples, asked).equals(overlaps(samples[::-1], asked))
    assert pl.concat([overlaps([each], asked) for each in samples]).equals(overlaps(samples, asked))


# Which questions are left of a benchmark's scores.


QUIZ_SCORES = pl.DataFrame(
    [(f"q{number}", "a", float(number)) for number in (5, 3, 1, 2, 4)],
    schema=tables.schema(tables.SCORES),
    orient="row",
)


def pairs(*rows: tuple[str, str, int, float, float]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=tables.schema(OVERLAPS), orient="row")


FOUND = pairs(
    ("s1", "q1", 30, 0.4, 0.2), ("s2", "q1", 5, 0.1, 0.6), ("s2", "q3", 1, 0.01, 0.0), ("s9", "q4", 0, 0.0, 0.7)
)


def test_a_question_is_touched_by_its_samples_together() -> None:
    assert touched(FOUND).rows() == [("q1", 2, 0.4, 0.6), ("q3", 1, 0.01, 0.0), ("q4", 1, 0.0, 0.7)]
    assert touched(FOUND.clear()).is_empty()


def test_scores_without_the_questions_that_are_touched_by_the_samples() -> None:
    found = without_touched(QUIZ_SCORES, FOUND)
    assert found.schema == QUIZ_SCORES.schema and found["question_id"].to_list() == ["q5", "q2"]
    assert without_touched(QUIZ_SCORES, FOUND.clear()).equals(QUIZ_SCORES)
    trained = FOUND.filter(pl.col("sample_id") == "s2")
    assert without_touched(QUIZ_SCORES, trained)["question_id"].to_list() == ["q5", "q2", "q4"]


@pytest.mark.parametrize(("samples", "expected"), [(10, {"q1", "q2", "q3"}), (11, {"q2", "q3"})])
def test_what_many_samples_have_a_little_of_is_the_wording_of_many_texts(samples: int, expected: set[str]) -> None:
    wording = [(f"s{number}", question, 40, 0.02, 0.0) for number in range(samples) for question in ("q1", "q2", "q3")]
    found = pairs(*wording, ("t", "q2", 100, 0.05, 0.0), ("t", "q3", 0, 0.0, NEAR))
    assert set(touched(found)["question_id"]) == expected
    counts = dict(touched(found).select("question_id", "samples").iter_rows())
    assert counts["q2"] == counts["q3"] == (samples + 1 if samples <= 10 else 1)
    assert set(touched(found, least=0.02)["question_id"]) == {"q1", "q2", "q3"}
    assert set(touched(found, most_samples=0)["question_id"]) == {"q2", "q3"}


# The experiment over the questions that do not stand in the data.


TWO_LINES = [Line(name="base", variants=("base",), trained=False), Line(name="full", variants=("full",))]
COSTS = {line.name: Cost() for line in TWO_LINES}


def overlaps_with(*questions: str) -> pl.DataFrame:
    return pairs(*(("s1", question, 50, 0.9, 0.0) for question in questions))


def test_what_a_model_knew_by_heart_no_longer_counts() -> None:
    """The first five questions stand in the data, and full knows them all; of the others it knows what base knows."""
    known = [float(40 + number % 3) for number in range(25)]
    values = {"base": scores([0.0] * 5 + known), "full": scores([100.0] * 5 + known)}
    whole = experiment_rows(chosen(), TWO_LINES, values, COSTS, reference="base")
    found = untouched_rows(
        chosen(), TWO_LINES, values, COSTS, overlaps_with(*(f"q{number:04d}" for number in range(5))), reference="base"
    )
    assert found.schema == tables.schema(UNTOUCHED)
    assert whole["questions"].to_list() == [30, 30] and found["questions"].to_list() == [25, 25]
    assert whole["difference"].to_list() == [None, pytest.approx(500 / 30)]
    assert found["difference"].to_list() == [None, 0.0] and found["touched"].to_list() == [5, 5]


def test_without_overlaps_it_is_the_experiment() -> None:
    values = {"base": scores([1.0, 2.0, 3.0]), "full": scores([2.0, 2.0, 3.0])}
    found = untouched_rows(chosen(), TWO_LINES, values, COSTS, overlaps_with(), reference="base")
    assert found.drop("touched").equals(experiment_rows(chosen(), TWO_LINES, values, COSTS, reference="base"))
    assert found["touched"].to_list() == [0, 0]


def test_where_every_question_is_touched_there_is_no_value() -> None:
    values = {"base": scores([1.0, 2.0]), "full": scores([2.0, 2.0])}
    found = untouched_rows(chosen(), TWO_LINES, values, COSTS, overlaps_with("q0000", "q0001"), reference="base")
    assert found.is_empty() and found.schema == tables.schema(UNTOUCHED)


# On real text: passages of Natural Questions that stand in the example data, and what a twin finds.


FOLDER = os.environ.get("GATEAU_EXAMPLE_DATA")
"""Holds `long_instructions.jsonl.gz` and `natural_questions.jsonl.gz`."""


def _example_rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(Path(FOLDER or "") / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _passage(number: int, row: dict[str, Any]) -> Question:
    turn = f"{row['passage']}\n\n{row['question']}?"
    generation = Generation(max_new_tokens=8)
    return Question(question_id=f"{number}: {row['title']}", group="nq", turns=(turn,), generation=generation)


def grams(text: str) -> set[tuple[str, ...]]:
    """Words of Latin text by a regular expression."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    return {tuple(words[start : start + 13]) for start in range(len(words) - 12)}


@pytest.mark.long
@pytest.mark.skipif(FOLDER is None, reason="GATEAU_EXAMPLE_DATA names no folder with the example data")
def test_the_passages_that_stand_in_both_are_found() -> None:
    questions = [_passage(number, row) for number, row in enumerate(_example_rows("natural_questions.jsonl.gz"))]
    samples = {
        row["id"]: [turn["content"] for turn in row["messages"]] for row in _example_rows("long_instructions.jsonl.gz")
    }
    found = overlaps(samples.items(), AskedTexts.of(questions))
    of_questions = {each.question_id: grams(each.turns[0]) for each in questions}
    expected = {}
    for sample_id, texts in samples.items():
        mine = set().union(*map(grams, texts))
        common = {name: len(asked & mine) for name, asked in of_questions.items()}
        expected |= {(sample_id, name): shared for name, shared in common.items() if shared}
    assert {(sample, name): shared for sample, name, shared, *_ in found.iter_rows()} == expected
    assert len(expected) == 20 and touched(found).height == 11
    whole = [name.partition(": ")[2] for name in touched(found, least=0.9, most_samples=0)["question_id"]]
    assert "Statue of Liberty" in whole and len(whole) == 6
