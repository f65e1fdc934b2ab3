"""LongBench's questions: which are asked, where they lie, and how each is worded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from gateau_dagster.config.addresses import InputAddress, InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.longbench_rows import (
    DATA_CURE,
    PROMPTS_CURE,
    Prompts,
    Row,
    read_prompts,
    read_rows,
)
from gateau_dagster.evaluation.longbench_sets import SETS, SUITES
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files
from gateau_dagster.evaluation.questions import Generation, Question

if TYPE_CHECKING:
    from gateau_dagster.config import Config


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
            facts={"classes": [*row.classes], "input": row.fields["input"]},
        )
        for row in rows
    ]


def _worded(prompt: str, row: Row) -> str:
    try:
        return prompt.format(**row.fields)
    except (KeyError, IndexError, ValueError) as error:
        raise GateauError(
            f"evaluation: LongBench's prompt of {row.data_set} asks for {error}, which its rows lack; {PROMPTS_CURE}"
        ) from error


def length_of(question_id: str) -> str:
    """The range of length that a question belongs to."""
    return question_id.split("/")[1]


def kind_of(question_id: str) -> str:
    """The kind of task of the data set that a question belongs to."""
    return SETS[question_id.split("/", maxsplit=1)[0]].kind


def read_questions(config: Config, options: LongBenchOptions, benchmark: str) -> list[Question]:
    """From the files that `evaluation.<benchmark>` names; raises GateauError where they are not there, or others."""
    data, prompts = f"evaluation.{benchmark}.data", f"evaluation.{benchmark}.prompts"
    texts = read_prompts(question_files(config, prompts, options.prompts, cure=PROMPTS_CURE), options.names, prompts)
    files = question_files(config, data, options.data, cure=DATA_CURE)
    return questions_of([*read_rows(files, options.names, data, extended=options.extended, most=options.rows)], texts)


def file_settings(config: Config, options: LongBenchOptions, benchmark: str) -> Mapping[str, Any]:
    """What is in the files: they may lie elsewhere without another result."""
    data, prompts = f"evaluation.{benchmark}.data", f"evaluation.{benchmark}.prompts"
    return {
        data: files_digest(config, data, options.data, cure=DATA_CURE),
        prompts: files_digest(config, prompts, options.prompts, cure=PROMPTS_CURE),
    }


def check_question_files(config: Config, options: LongBenchOptions, benchmark: str) -> None:
    """Raises GateauError for files that are not there."""
    check_files(config, f"evaluation.{benchmark}.data", options.data, cure=DATA_CURE)
    check_files(config, f"evaluation.{benchmark}.prompts", options.prompts, cure=PROMPTS_CURE)
