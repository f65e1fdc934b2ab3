"""A benchmark for tests: some of its questions have two turns, some are drawn; an answer is worth its letters."""

from collections.abc import Sequence

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.evaluation.benchmark import Benchmark, Generation, Materials, Measured, Question, Scored


class QuizOptions(Section):
    """`evaluation.quiz` of the configuration."""

    questions: int = Field(default=6, ge=1)
    words: int = Field(default=4, ge=1, description="Tokens of an answer.")
    worth: float = 1.0


def questions(materials: Materials, options: QuizOptions) -> list[Question]:
    del materials
    return [
        Question(
            question_id=f"q{n:03d}",
            group=f"turns {1 + n % 2}",
            turns=(f"recall noun{n} of the table", "tell about it")[: 1 + n % 2],
            generation=Generation(max_new_tokens=options.words + n % 3, temperature=0.8 if n % 3 == 0 else 0.0),
        )
        for n in range(options.questions)
    ]


def grade(
    asked: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: QuizOptions
) -> Measured:
    assert judgments is None
    groups = pl.DataFrame({"question_id": [q.question_id for q in asked], "group": [q.group for q in asked]})
    letters = pl.col("answer").str.len_chars().mean() * options.worth
    worth = answers.group_by("question_id").agg(value=letters)
    return Measured(table=groups.join(worth, on="question_id").select(tables.schema(tables.SCORES).names()))


BENCHMARK = Benchmark(
    name="quiz",
    title="Quiz",
    description="For tests.",
    options=QuizOptions,
    scored=Scored(unit="letters", questions=questions, grade=grade),
)
