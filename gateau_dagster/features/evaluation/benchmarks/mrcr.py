"""MRCR (OpenAI 2025): one of several similar messages of a long conversation, word for word; no judge.

The grade is that of the data set's card.
"""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from typing import ClassVar

from pydantic import Field

from gateau_dagster.config.values import InputAddresses
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.benchmarks.graphwalks import GraphWalksOptions, character_range
from gateau_dagster.features.evaluation.question_files import OfficialRow

CURE = (
    "download the folders 2needle, 4needle and 8needle of https://huggingface.co/datasets/openai/mrcr, and give the "
    "path of one, or a list of several"
)


class MrcrOptions(GraphWalksOptions):
    """The section `evaluation.mrcr` of the configuration; the files are OpenAI's."""

    data: InputAddresses | None = Field(
        default=None,
        description="Paths of the parquet files: a file, folder, glob, s3:// or hf:// address.",
        examples=["mrcr/2needle"],
    )


def similarity(answer: str, right: str, marker: str) -> float:
    """Return difflib's ratio, 0 to 1, of the texts after the marker; 0 for an answer that does not begin with it."""
    if not answer.startswith(marker):
        return 0.0
    return SequenceMatcher(None, answer.removeprefix(marker), right.removeprefix(marker)).ratio()


def conversation(row: OfficialRow) -> list[tuple[str, str]]:
    """Return role and content of the messages; the user begins and ends, and each answer follows a question.

    Raises ValueError for another prompt.
    """
    expected = "the JSON of a list of messages that the user begins and ends"
    try:
        given = json.loads(row.text("prompt"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise row.wrong("prompt is no JSON", expected) from error
    if not isinstance(given, list):
        raise row.wrong("prompt is no list", expected)
    rows = [OfficialRow(where=f"{row.where}, message {place}", value=each) for place, each in enumerate(given, start=1)]
    found = [(each.text("role"), each.text("content", empty=True)) for each in rows]
    before = "assistant"
    for each, (role, _) in zip(rows, found, strict=True):
        if role != "user" and (role, before) != ("assistant", "user"):
            raise each.wrong(f"its role is {role[:60]!r} after {before}", "user, or assistant after user")
        before = role
    if before != "user":
        raise row.wrong("prompt does not end with a message of the user", expected)
    return found


class Mrcr(QuestionBenchmark):
    """MRCR: the n-th poem, or other text, about a subject in a conversation with several of them."""

    name = "mrcr"
    title = "MRCR"
    description = "The n-th of several like texts of a long conversation, by the similarity of the repeated text."
    options: MrcrOptions
    unit = "%"
    groups = "needles"
    groupings: ClassVar = {"length": id_part(1)}
    official: ClassVar = {"data": CURE}

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per row: its last message, after the others; answers are greedy.

        Ids consist of the number of needles, the range of length and the row's place among all rows of the files.
        Conversations begin with two messages of the user, which a chat template must allow. Without a chat template,
        they are joined.

        Raises:
            GateauError: a file cannot be read, or is not the published one.
        """
        data, longest, questions = self.file("data"), self.options.longest, list[Question]()
        with data.understood():
            for place, row in enumerate(data.rows()):
                needles, right = row.identifier("n_needles"), row.text("answer")
                marker, messages = row.text("random_string_to_prepend"), conversation(row)
                if not right.startswith(marker):
                    raise row.wrong("answer does not begin with random_string_to_prepend", "the published row")
                characters = sum(len(text) for _, text in messages)
                if longest is None or characters <= longest:
                    question = Question(
                        question_id=f"{needles} needles/{character_range(characters)}/{place:04d}",
                        group=f"{needles} needles",
                        turns=(messages[-1][1],),
                        generation=Generation(max_new_tokens=self.options.max_new_tokens),
                        earlier=tuple(messages[:-1]),
                        references=(right,),
                        facts={"marker": marker},
                    )
                    questions.append(question)
        if not questions:
            raise data.wrong(f"every conversation has more than the {longest} characters of {self.place('longest')}")
        return questions

    def value(self, question: Question, answer: str) -> float:
        """Return the similarity of the answer to the right one after the marker, in per cent."""
        return 100 * similarity(answer, question.references[0], question.facts["marker"])
