"""The benchmark `quiz` among the others, for as long as it is wanted."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from gateau_dagster import evaluation
from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark
from gateau_dagster.evaluation.registry import all_benchmarks

FOLDER = Path(__file__).parent / "benchmarks_in_test"


@contextmanager
def with_quiz() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "__path__", [*evaluation.__path__, str(FOLDER)])
        all_benchmarks.cache_clear()
        yield
    all_benchmarks.cache_clear()


# A benchmark that asks what its options say, for tests of what is made for every benchmark with questions.


NAME = "quiz"


class QuizOptions(Section):
    texts: list[str] = Field(default=["who knows?"], description="The questions.")


class Quiz(QuestionBenchmark):
    name = NAME
    title = "Quiz"
    description = "What the options ask."
    options: QuizOptions
    unit = "%"

    def questions(self, materials: Materials) -> list[Question]:
        generation = Generation(max_new_tokens=4)
        return [
            Question(question_id=f"q{number}", group="all", turns=(text,), generation=generation)
            for number, text in enumerate(self.options.texts)
        ]

    def value(self, question: Question, answer: str) -> float:
        return 0.0


@pytest.fixture
def quiz(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The benchmark is known while a test runs; its name."""
    known: Any = all_benchmarks()
    monkeypatch.setitem(known, NAME, Quiz)
    yield NAME
