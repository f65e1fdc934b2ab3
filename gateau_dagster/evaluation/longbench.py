"""LongBench (Bai et al. 2023): questions about long documents, summaries, examples and code; automatic metrics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.longbench_questions import (
    LongBenchOptions,
    check_question_files,
    file_settings,
    kind_of,
    length_of,
    read_questions,
)
from gateau_dagster.evaluation.longbench_sets import SETS, answer_score
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Measured, Scored

if TYPE_CHECKING:
    from gateau_dagster.config import Config

_NAME = "longbench"


def grade(
    questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: LongBenchOptions
) -> Measured:
    """The metric of each answer's set against the best of the right answers, in per cent."""
    del judgments, options

    def value(question: Question, answer: str) -> float:
        return 100 * answer_score(question.group, answer, question.references, question.facts["classes"])

    return grade_each(questions, answers, value)


def _questions(materials: Materials, options: LongBenchOptions) -> list[Question]:
    return read_questions(materials.config, options, _NAME)


def _check(config: Config, options: LongBenchOptions) -> None:
    """Raises GateauError for files that are not there, and for Chinese sets where jieba is not installed."""
    check_question_files(config, options, _NAME)
    segmented = [name for name in options.names if SETS[name].segmented]
    if segmented and find_spec("jieba") is None:
        raise GateauError(
            f"evaluation.longbench.sets: {', '.join(segmented)} are compared word by word, and jieba, which tells "
            "Chinese words, is not installed: pip install 'gateau-dagster[evaluation]', or name other sets"
        )


BENCHMARK = Benchmark(
    name=_NAME,
    title="LongBench",
    description="Questions about long documents, summaries, examples and code, by LongBench's automatic metrics.",
    options=LongBenchOptions,
    settings=partial(file_settings, benchmark=_NAME),
    check=_check,
    scored=Scored(
        unit="%",
        groups="data set",
        groupings={"length": length_of, "kind of task": kind_of},
        questions=_questions,
        grade=grade,
    ),
)
