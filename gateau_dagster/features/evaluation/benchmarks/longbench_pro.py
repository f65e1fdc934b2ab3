"""LongBench Pro (Chen et al. 2026): English and Chinese tasks over real texts of 8k to 256k tokens; no judge.

Experts labelled each question by whether it needs the whole text or a part of it. The metrics are those of the authors'
modules/utils.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import ClassVar, Literal, get_args

from pydantic import Field, field_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddresses
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.grading import ndcg
from gateau_dagster.features.evaluation.question_files import by_id

CURE = (
    "download https://huggingface.co/datasets/caskcsg/LongBench-Pro/resolve/main/longbench_pro.json, and give its "
    "path, or hf://datasets/caskcsg/LongBench-Pro/longbench_pro.json"
)
MARKERS = ("[Answer]", "[答案]")
"""The marks of an answer; the last occurrence counts. The second mark counts only in an answer without the first."""
Length = Literal["8k", "16k", "32k", "64k", "128k", "256k"]
LENGTHS: tuple[Length, ...] = get_args(Length)
LABELS = {
    "contextual_requirement": ("Full", "Partial"),
    "token_length": LENGTHS,
    "difficulty": ("Easy", "Moderate", "Hard", "Extreme"),
    "language": ("English", "Chinese"),
}
"""The fields that label a row, in the order of a question's id, and their values."""
Metric = Callable[[Sequence[str], Sequence[str]], float]
"""A metric takes the normalised right lines and answer lines, and returns 0 to 1."""


def first_line(right: Sequence[str], said: Sequence[str]) -> float:
    """Return whether the first line is the right one."""
    return float(right[0] == said[0])


def line_f1(right: Sequence[str], said: Sequence[str]) -> float:
    """Return the F1 of the set of lines."""
    shared = len({*right} & {*said})
    return 2 * shared / (len({*right}) + len({*said}))


def line_share(right: Sequence[str], said: Sequence[str]) -> float:
    """Return the share of the right lines that the answer has."""
    return sum(line in said for line in right) / len(right)


def ranking(right: Sequence[str], said: Sequence[str]) -> float:
    """Return NDCG at the number of right lines, the first of which is worth most; a repeated line counts where it is
    last.
    """
    worth = {line: len(right) - place for place, line in enumerate(right)}
    return ndcg([*dict.fromkeys(reversed(said))][::-1], worth, depth=len(right))


def pair_share(right: Sequence[str], said: Sequence[str]) -> float:
    """Return the right pairs in the right order over all pairs of lines in the answer.

    Values above 1, which repeated right lines can have, count as 0, as in the published code.
    """
    places = {line: place for place, line in enumerate(said)}
    ordered = sum(
        one in places and other in places and places[one] < places[other] for one, other in combinations(right, 2)
    )
    pairs = comb(len(said), 2)
    return ordered / pairs if ordered <= pairs and pairs else 0.0


METRICS: Mapping[str, Metric] = {
    **dict.fromkeys(("T1.1", "T1.2"), ranking),
    **dict.fromkeys(("T2.1", "T2.2", "T6.3"), pair_share),
    **dict.fromkeys(("T3.1", "T3.2", "T11.1", "T11.2"), first_line),
    **dict.fromkeys(("T5.1", "T5.2", "T6.2", "T7.1", "T7.2", "T7.3", "T9.1", "T9.2"), line_f1),
    **dict.fromkeys(("T6.1", "T8.1", "T8.2", "T8.3", "T10.1", "T10.2"), line_share),
}
"""The metric of each secondary task, by its number."""
SUMMARIES = "T4"
"""The task that an embedding model of 8B parameters grades."""
TASKS = tuple(f"T{number}" for number in range(1, 12) if f"T{number}" != SUMMARIES)


def lines_of(answer: str) -> list[str]:
    """Return the lines after the last mark, in lower case and with single spaces."""
    marker = next((each for each in MARKERS if each in answer), None)
    area = answer if marker is None else answer.rpartition(marker)[2]
    return [" ".join(line.split()) for line in area.strip().lower().split("\n")]


class LongBenchProOptions(Section):
    """The section `evaluation.longbench_pro` of the configuration; the file is the authors'."""

    data: InputAddresses | None = Field(
        default=None,
        description="Path of longbench_pro.json: a file, folder, s3:// or hf:// address.",
        examples=["LongBench-Pro/longbench_pro.json"],
    )
    tasks: list[str] = Field(
        default=list(TASKS),
        min_length=1,
        description=f"Primary tasks to ask: some of {', '.join(TASKS)}. Summaries (T4) are left out, because an "
        "embedding model of 8B parameters grades them.",
    )
    lengths: list[Length] = Field(
        default=list(LENGTHS), min_length=1, description="Lengths of the texts of the questions to ask, in tokens."
    )
    thinking: bool = Field(
        default=False, description="Whether to ask the form of each question that requests reasoning before the answer."
    )
    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of an answer. Default: 1024, with `thinking` 8192, as published.",
        examples=[1024],
    )

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: list[str]) -> list[str]:
        if SUMMARIES in tasks:
            raise GateauError("evaluation.task", f"{SUMMARIES} is graded by Qwen3-Embedding-8B, which is not run here")
        if not {*tasks} <= {*TASKS}:
            raise GateauError("evaluation.task", f"must be some of {', '.join(TASKS)}")
        return tasks


class LongBenchPro(QuestionBenchmark):
    """LongBench Pro without its summaries."""

    name = "longbench_pro"
    title = "LongBench Pro"
    description = "Tasks over real long texts, labelled by whether they need the full text; without the summaries."
    options: LongBenchProOptions
    unit = "%"
    by_group = False
    groups = "task"
    groupings: ClassVar = {
        "context requirement": id_part(1),
        "length": id_part(2),
        "difficulty": id_part(3),
        "language": id_part(4),
    }

    official: ClassVar = {"data": CURE}

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per row of the chosen tasks and lengths; answers are greedy.

        Ids consist of the number of the secondary task, LABELS and the row's own id. The authors average three answers
        at the model's own temperature. Too long a prompt loses its middle, as there.

        Raises:
            GateauError: the file cannot be read, or is not the published one.
        """
        data, options, questions = self.file("data"), self.options, list[Question]()
        asks = "question_thinking" if options.thinking else "question_nonthinking"
        generation = Generation(max_new_tokens=options.max_new_tokens or (8192 if options.thinking else 1024))
        with data.understood():
            for name, row in by_id(data.rows(), "id"):
                group, task = row.text("primary_task"), row.text("secondary_task").partition(" ")[0]
                if task not in METRICS and not task.startswith(f"{SUMMARIES}."):
                    raise row.wrong(f"secondary_task is {task[:60]!r}", f"one of {', '.join(METRICS)}")
                labels, right = [row.one_of(*each) for each in LABELS.items()], row.texts("answer")
                turn = f"{row.text('context')}\n\n\n\n{row.text(asks)}".strip()
                if task.partition(".")[0] in options.tasks and labels[1] in options.lengths:
                    question_id = "/".join((task, *labels, name))
                    question = Question(
                        question_id=question_id, group=group, turns=(turn,), generation=generation, references=right
                    )
                    questions.append(question)
        if not questions:
            raise data.wrong(f"no rows of {', '.join(options.tasks)} with {', '.join(options.lengths)} tokens")
        return questions

    def value(self, question: Question, answer: str) -> float:
        """Return the value by the task's metric, in per cent; 0 for an empty answer."""
        right = [" ".join(line.lower().split()) for line in question.references]
        return 100 * METRICS[id_part(0)(question.question_id)](right, lines_of(answer)) if answer.strip() else 0.0
