"""On real text: passages of Natural Questions that stand in the example data, and what a twin finds."""

import gzip
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.contamination import AskedTexts, overlaps, touched

FOLDER = os.environ.get("GATEAU_EXAMPLE_DATA")
"""Holds `long_instructions.jsonl.gz` and `natural_questions.jsonl.gz`."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(FOLDER is None, reason="GATEAU_EXAMPLE_DATA names no folder with the example data"),
]


def rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(Path(FOLDER or "") / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def question(number: int, row: dict[str, Any]) -> Question:
    turn = f"{row['passage']}\n\n{row['question']}?"
    generation = Generation(max_new_tokens=8)
    return Question(question_id=f"{number}: {row['title']}", group="nq", turns=(turn,), generation=generation)


def grams(text: str) -> set[tuple[str, ...]]:
    """Words of Latin text by a regular expression."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())
    return {tuple(words[start : start + 13]) for start in range(len(words) - 12)}


def test_the_passages_that_stand_in_both_are_found() -> None:
    questions = [question(number, row) for number, row in enumerate(rows("natural_questions.jsonl.gz"))]
    samples = {row["id"]: [turn["content"] for turn in row["messages"]] for row in rows("long_instructions.jsonl.gz")}
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
