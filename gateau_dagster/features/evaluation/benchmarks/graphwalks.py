"""GraphWalks (OpenAI 2025): searches in graphs that are listed edge by edge, graded by the F1 of the set of nodes.

Extraction and grading follow the data set's card at revision be6cc6e (February 2026). Earlier revisions give an
answer without a right node the value 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import ClassVar

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddresses
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.question_files import OfficialRow

CURE = (
    "download https://huggingface.co/datasets/openai/graphwalks/resolve/main/graphwalks_128k_and_shorter.parquet, and "
    "give its path, or that of the folder with graphwalks_256k_to_1mil.parquet, too"
)
KINDS = ("bfs", "parents")
LEAD = "Final Answer:"
"""The words that the last line of an answer must contain."""


class GraphWalksOptions(Section):
    """The section `evaluation.graphwalks` of the configuration; the files are OpenAI's."""

    data: InputAddresses | None = Field(
        default=None,
        description="Paths of the parquet files: a file, folder, glob, s3:// or hf:// address.",
        examples=["graphwalks/graphwalks_128k_and_shorter.parquet"],
    )
    longest: int | None = Field(
        default=None,
        ge=1,
        description="Characters above which a prompt is not asked: a cut prompt has another answer, and earlier "
        "messages of a conversation are never cut. Default: all.",
        examples=[60_000],
    )
    max_new_tokens: int = Field(default=4096, ge=1, description="Most tokens of an answer; the authors name none.")


def character_range(characters: int) -> str:
    """Return the range of a prompt's length in thousands of characters; each range is twice as long as the last."""
    low, high = 0, 4
    while characters >= 1000 * high:
        low, high = high, 2 * high
    return f"{low}-{high}k"


def final_nodes(answer: str) -> set[str] | None:
    """Return the nodes in the brackets of the last line; None if it has no LEAD or no brackets.

    The last line is the text after the last line break; it is empty if the answer ends with a line break.
    """
    line = answer.rpartition("\n")[2]
    found = re.search(r"\[.*\]", line)
    if LEAD not in line or found is None:
        return None
    return {node.strip() for node in found[0].strip("[]").split(",") if node.strip()}


def node_f1(found: Collection[str] | None, right: Collection[str]) -> float:
    """Return the F1 of a set of nodes, 0 to 1; two empty sets agree, and None has no right node."""
    if found is None:
        return 0.0
    found, right = {*found}, {*right}
    return 2 * len(found & right) / (len(found) + len(right)) if found or right else 1.0


def _nodes(row: OfficialRow) -> tuple[str, ...]:
    """Return the right nodes; there may be none."""
    given = row.field("answer_nodes")
    if not isinstance(given, list) or not all(isinstance(node, str) for node in given):
        raise row.wrong("answer_nodes is no list of texts", "a list of texts")
    return tuple(given)


class GraphWalks(QuestionBenchmark):
    """GraphWalks: nodes at a depth of a breadth-first search, and parents of a node."""

    name = "graphwalks"
    title = "GraphWalks"
    description = "Breadth-first searches and parents in graphs that the prompt lists, by the F1 of the set of nodes."
    options: GraphWalksOptions
    unit = "%"
    groups = "problem type"
    groupings: ClassVar = {"length": id_part(1)}
    official: ClassVar = {"data": CURE}

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per row, with its prompt unchanged; answers are greedy.

        Ids consist of problem type, range of length and the row's place among all rows of the files.

        Raises:
            GateauError: a file cannot be read, or is not the published one.
        """
        data, longest, questions = self.file("data"), self.options.longest, list[Question]()
        with data.understood():
            for place, row in enumerate(data.rows()):
                kind, prompt, right = row.one_of("problem_type", KINDS), row.text("prompt"), _nodes(row)
                if longest is None or len(prompt) <= longest:
                    question = Question(
                        question_id=f"{kind}/{character_range(len(prompt))}/{place:04d}",
                        group=kind,
                        turns=(prompt,),
                        generation=Generation(max_new_tokens=self.options.max_new_tokens),
                        references=right,
                    )
                    questions.append(question)
        if not questions:
            raise data.wrong(f"every prompt has more than the {longest} characters of {self.place('longest')}")
        return questions

    def value(self, question: Question, answer: str) -> float:
        """Return the F1 of the nodes in the answer's last line, in per cent."""
        return 100 * node_f1(final_nodes(answer), question.references)
