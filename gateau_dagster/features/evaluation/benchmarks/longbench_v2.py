"""LongBench v2 (Bai et al. 2024): 503 questions with four choices over texts of 8k to 2M words; no judge."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress, InputAddresses
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.question_files import OfficialRow, by_id

DATA_CURE = (
    "download https://huggingface.co/datasets/THUDM/LongBench-v2/resolve/main/data.json, and give its path, or "
    "hf://datasets/THUDM/LongBench-v2/data.json"
)
PROMPT_CURE = "get prompts/0shot.txt from https://github.com/THUDM/LongBench, and give its path"
# The gaps of the prompt, in the order in which they are filled, and the fields of a row.
GAPS = {
    "$DOC$": "context",
    "$Q$": "question",
    "$C_A$": "choice_A",
    "$C_B$": "choice_B",
    "$C_C$": "choice_C",
    "$C_D$": "choice_D",
}
DIFFICULTIES, CHOICES = ("easy", "hard"), ("A", "B", "C", "D")
LENGTHS = {"short": "0-32k (short)", "medium": "32-128k (medium)", "long": "128k+ (long)"}
"""The ranges of length in words, as the report names them, by the name of each in the data."""
LEAD = "The correct answer is"
"""The words before the choice that the prompt asks for."""


class LongBenchV2Options(Section):
    """The section `evaluation.longbench_v2` of the configuration; the files are the authors'."""

    data: InputAddresses | None = Field(
        default=None,
        description="Path of data.json: a file, folder, s3:// or hf:// address.",
        examples=["LongBench-v2/data.json"],
    )
    prompt: InputAddress | None = Field(
        default=None,
        description="Path of prompts/0shot.txt. With 0shot_no_context.txt, questions are asked without their text.",
        examples=["LongBench/prompts/0shot.txt"],
    )
    lengths: list[Literal["short", "medium", "long"]] = Field(
        default=["short", "medium", "long"],
        min_length=1,
        description="Questions to ask, by the length of their texts: short is below 32k words, long above 128k.",
    )
    seed: int = Field(default=0, ge=0, description="Seeds the answers, whose temperature is 0.1 as published.")


def chosen_letter(answer: str) -> str | None:
    """Return the choice in an answer, or None. Asterisks do not count; a letter in brackets comes first."""
    plain = answer.replace("*", "")
    found = re.search(rf"{LEAD} \(([A-D])\)", plain) or re.search(rf"{LEAD} ([A-D])", plain)
    return found[1] if found else None


def filled(template: str, row: OfficialRow) -> str:
    """Return the prompt of a row, which the published code fills gap by gap, in the order of GAPS."""
    for gap, key in GAPS.items():
        template = template.replace(gap, row.text(key, empty=True).strip())
    return template


def length_of(question_id: str) -> str:
    """Return the range of length of a question."""
    return LENGTHS[id_part(1)(question_id)]


class LongBenchV2(QuestionBenchmark):
    """LongBench v2, asked without examples and without a chain of thought."""

    name = "longbench_v2"
    title = "LongBench v2"
    description = "Questions with four choices over texts of 8k to 2M words, by the share of right choices."
    options: LongBenchV2Options
    unit = "%"
    by_group = False
    groups = "difficulty"
    groupings: ClassVar = {"length": length_of}
    official: ClassVar = {"data": DATA_CURE, "prompt": PROMPT_CURE}
    plain_texts = ("prompt",)

    def questions(self, materials: Materials) -> list[Question]:
        """Return one question per row of the chosen lengths; ids consist of difficulty, length and the row's own id.

        Decoding is the published one: at most 128 tokens at temperature 0.1. Too long a prompt loses its middle, as
        there.

        Raises:
            GateauError: a file cannot be read, or is not the published one.
        """
        data, template, questions = self.file("data"), self._template(), list[Question]()
        generation = Generation(max_new_tokens=128, temperature=0.1, seed=self.options.seed)
        with data.understood():
            for name, row in by_id(data.rows(), "_id"):
                difficulty, length = row.one_of("difficulty", DIFFICULTIES), row.one_of("length", LENGTHS)
                right, turn = row.one_of("answer", CHOICES), filled(template, row)
                if length in self.options.lengths:
                    question = Question(
                        question_id=f"{difficulty}/{length}/{name}",
                        group=difficulty,
                        turns=(turn,),
                        generation=generation,
                        references=(right,),
                    )
                    questions.append(question)
        if not questions:
            raise data.wrong(f"no rows whose length is {' or '.join(self.options.lengths)}")
        return questions

    def value(self, question: Question, answer: str) -> float:
        """Return 100 for the right choice; 0 for another choice, or for an answer without a choice in this form."""
        return 100.0 * (chosen_letter(answer) == question.references[0])

    def _template(self) -> str:
        prompt = self.file("prompt")
        text = prompt.text(prompt.only())
        gaps = {*re.findall(r"\$[A-Z_]+\$", text)}
        if gaps | {"$DOC$"} != {*GAPS} or LEAD not in text:
            shown = " ".join(sorted(gaps)) or "none"
            raise prompt.wrong(
                f"{prompt.path} is not the published prompt: its gaps are {shown}; expected {' '.join(GAPS)}, and a "
                f'request to answer "{LEAD} …"'
            )
        return text
