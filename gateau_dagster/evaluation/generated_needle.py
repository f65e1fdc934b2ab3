"""A needle in a haystack as LongAlign tests it: 1k to 60k tokens by 10 to 90 %, the answer generated, exact match."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import polars as pl

from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.generated_needle_questions import (
    GeneratedNeedleOptions,
    cell_of,
    check_needle,
    needle_questions,
    needle_reads,
    needle_settings,
    needle_sizes,
    probe_needle,
)
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.needle_texts import holds
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Measured, Scored

_NAME = "generated_needle"


def grade(
    questions: Sequence[Question],
    answers: pl.DataFrame,
    judgments: pl.DataFrame | None,
    options: GeneratedNeedleOptions,
) -> Measured:
    """100 where the answer says what the question does not, word for word; else 0."""
    del judgments, options
    return grade_each(questions, answers, lambda question, answer: 100.0 * holds(answer, question.facts["key"]))


BENCHMARK = Benchmark(
    name=_NAME,
    title="Needle in a haystack, generated",
    description="A sentence hidden at a depth of a text of a length, and asked for: whether the answer holds it.",
    options=GeneratedNeedleOptions,
    settings=partial(needle_settings, benchmark=_NAME),
    check=partial(check_needle, benchmark=_NAME),
    scored=Scored(
        unit="%",
        by_base=True,
        groups="length and depth",
        grid=cell_of,
        reads=needle_reads,
        sizes=needle_sizes,
        probe=partial(probe_needle, benchmark=_NAME),
        questions=partial(needle_questions, benchmark=_NAME),
        grade=grade,
    ),
)
