"""A benchmark for tests: some of its questions have two turns, some are drawn; an answer is worth its letters."""

from collections.abc import Sequence

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Measured, Question, QuestionBenchmark


class QuizOptions(Section):
    """`evaluation.quiz` of the configuration."""

    questions: int = Field(default=6, ge=1)
    words: int = Field(default=4, ge=1, description="Tokens of an answer.")
    worth: float = 1.0
    texts: list[str] = Field(default=[], description="What is asked in place of these questions.")


class Quiz(QuestionBenchmark):
    name = "quiz"
    title = "Quiz"
    description = "For tests."
    options: QuizOptions
    unit = "letters"

    def _turns(self) -> list[tuple[str, ...]]:
        drawn = [(f"recall noun{n} of the table", "tell about it") for n in range(self.options.questions)]
        return [(text,) for text in self.options.texts] or [pair[: 1 + n % 2] for n, pair in enumerate(drawn)]

    def questions(self, materials: Materials) -> list[Question]:
        return [
            Question(
                question_id=f"q{n}" if self.options.texts else f"q{n:03d}",
                group=f"turns {1 + n % 2}",
                turns=turns,
                generation=Generation(
                    max_new_tokens=self.options.words + n % 3, temperature=0.8 if n % 3 == 0 else 0.0
                ),
            )
            for n, turns in enumerate(self._turns())
        ]

    def grade(self, questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None) -> Measured:
        assert judgments is None
        groups = pl.DataFrame(
            {"question_id": [q.question_id for q in questions], "group": [q.group for q in questions]}
        )
        letters = pl.col("answer").str.len_chars().mean() * self.options.worth
        worth = answers.group_by("question_id").agg(value=letters)
        return Measured(table=groups.join(worth, on="question_id").select(tables.schema(tables.SCORES).names()))
