"""LongBench (Bai et al. 2023): questions about long documents, summaries, examples and code; automatic metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from pydantic import Field, field_validator

from gateau_dagster.config.addresses import InputAddress, InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.grading import grade_each
from gateau_dagster.evaluation.longbench_rows import (
    DATA_CURE,
    PROMPTS_CURE,
    Prompts,
    Row,
    read_prompts,
    read_rows,
)
from gateau_dagster.evaluation.longbench_sets import SETS, SUITES, answer_score
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files
from gateau_dagster.evaluation.questions import Generation, Question
from gateau_dagster.evaluation.scored import Measured, Scored

if TYPE_CHECKING:
    from gateau_dagster.config import Config

DATA, PROMPTS = "evaluation.longbench.data", "evaluation.longbench.prompts"


class LongBenchOptions(Section):
    """Which of LongBench's data sets are asked, and where they lie."""

    data: InputAddresses | None = Field(
        default=None, description="Its rows: folder, glob, s3:// or hf:// address; a file a data set, <set>.jsonl."
    )
    prompts: InputAddress | None = Field(
        default=None, description="Folder of dataset2prompt.json and dataset2maxlen.json, as published."
    )
    sets: Literal["gateau", "english", "all"] | list[str] = Field(
        default="gateau",
        description="gateau: the twelve that GATEAU reports; english: sixteen, with those in code; all: 21; or names.",
    )
    extended: bool = Field(default=False, description="LongBench-E: files <set>_e.jsonl, even in length.")
    rows: int | None = Field(default=None, ge=1, description="The first rows of each set; default: all.")

    @field_validator("sets")
    @classmethod
    def _known(cls, sets: str | list[str]) -> str | list[str]:
        if isinstance(sets, list) and (not sets or not {*sets} <= {*SETS}):
            raise ValueError(f"is gateau, english, all, or a list of these: {', '.join(SETS)}")
        return sets

    @property
    def names(self) -> tuple[str, ...]:
        """The data sets, each once, in LongBench's order."""
        chosen = SUITES[self.sets] if isinstance(self.sets, str) else self.sets
        return tuple(name for name in SETS if name in chosen)


def questions_of(rows: Sequence[Row], prompts: Prompts) -> list[Question]:
    """A question a row, worded as published; answers are greedy.

    Ids are data set, range of length and the row's own id. samsum's answers are not ended at their first line, as they
    are in the published code: only their first line is graded, and it is the same.
    """
    return [
        Question(
            question_id=f"{row.data_set}/{row.bucket}/{row.row_id}",
            group=row.data_set,
            turns=(_worded(prompts.texts[row.data_set], row),),
            generation=Generation(max_new_tokens=prompts.answer_tokens[row.data_set]),
            chat=SETS[row.data_set].chat,
            references=row.answers,
            facts={"classes": [*row.classes]},
        )
        for row in rows
    ]


def _worded(prompt: str, row: Row) -> str:
    try:
        return prompt.format(**row.fields)
    except (KeyError, IndexError, ValueError) as error:
        raise GateauError(
            f"{PROMPTS}: the prompt of {row.data_set} asks for {error}, which its rows lack; {PROMPTS_CURE}"
        ) from error


def grade(
    questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None, options: LongBenchOptions
) -> Measured:
    """The metric of each answer's set against the best of the right answers, in per cent."""
    del judgments, options

    def value(question: Question, answer: str) -> float:
        return 100 * answer_score(question.group, answer, question.references, question.facts["classes"])

    return grade_each(questions, answers, value)


def by_length(scores: pl.DataFrame) -> pl.DataFrame:
    """`bucket`, `value`, `questions`: over the ranges of length, the mean of the data sets' means (GATEAU, Fig. 3).

    scores: tables.SCORES of this benchmark.
    """
    bucketed = scores.with_columns(bucket=pl.col("question_id").str.split("/").list.get(1))
    by_set = bucketed.group_by("bucket", "group").agg(pl.col("value").mean(), questions=pl.len())
    return by_set.group_by("bucket").agg(pl.col("value").mean(), pl.col("questions").sum()).sort("bucket")


def _questions(materials: Materials, options: LongBenchOptions) -> list[Question]:
    config = materials.config
    texts = question_files(config, PROMPTS, options.prompts, cure=PROMPTS_CURE)
    prompts = read_prompts(texts, options.names, PROMPTS)
    files = question_files(config, DATA, options.data, cure=DATA_CURE)
    rows = read_rows(files, options.names, DATA, extended=options.extended, most=options.rows)
    return questions_of([*rows], prompts)


def _settings(config: Config, options: LongBenchOptions) -> Mapping[str, Any]:
    """What is in the files: they may lie elsewhere without another result."""
    return {
        DATA: files_digest(config, DATA, options.data, cure=DATA_CURE),
        PROMPTS: files_digest(config, PROMPTS, options.prompts, cure=PROMPTS_CURE),
    }


def _check(config: Config, options: LongBenchOptions) -> None:
    """Raises GateauError for files that are not there, and for Chinese sets where jieba is not installed."""
    check_files(config, DATA, options.data, cure=DATA_CURE)
    check_files(config, PROMPTS, options.prompts, cure=PROMPTS_CURE)
    segmented = [name for name in options.names if SETS[name].segmented]
    if segmented and find_spec("jieba") is None:
        raise GateauError(
            f"evaluation.longbench.sets: {', '.join(segmented)} are compared word by word, and jieba, which tells "
            "Chinese words, is not installed: pip install 'gateau-dagster[evaluation]', or name other sets"
        )


BENCHMARK = Benchmark(
    name="longbench",
    title="LongBench",
    description="Questions about long documents, summaries, examples and code, by LongBench's automatic metrics.",
    options=LongBenchOptions,
    settings=_settings,
    check=_check,
    scored=Scored(unit="%", questions=_questions, grade=grade),
)
