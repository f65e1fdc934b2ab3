"""A benchmark that asks what its options say, for tests of what is made for every benchmark with questions."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pytest
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.benchmark import Benchmark, Generation, Materials, Measured, Question, Scored
from gateau_dagster.evaluation.registry import all_benchmarks

NAME = "quiz"


class QuizOptions(Section):
    texts: list[str] = Field(default=["who knows?"], description="The questions.")


def questions(materials: Materials, options: QuizOptions) -> list[Question]:
    generation = Generation(max_new_tokens=4)
    return [
        Question(question_id=f"q{number}", group="all", turns=(text,), generation=generation)
        for number, text in enumerate(options.texts)
    ]


def grade(asked: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: Any) -> Measured:
    rows = [(each.question_id, each.group, 0.0) for each in asked]
    return Measured(table=pl.DataFrame(rows, schema=tables.schema(tables.SCORES), orient="row"))


QUIZ = Benchmark(
    name=NAME,
    title="Quiz",
    description="What the options ask.",
    options=QuizOptions,
    scored=Scored(unit="%", questions=questions, grade=grade),
)


@pytest.fixture
def quiz(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The benchmark is known while a test runs; its name."""
    known: Any = all_benchmarks()
    monkeypatch.setitem(known, NAME, QUIZ)
    yield NAME
