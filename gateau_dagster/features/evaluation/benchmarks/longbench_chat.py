"""LongBench-Chat (LongAlign): fifty questions about documents of 10k to 100k tokens, rated beside scored answers.

Cases, scored answers and the judge's prompt are read from LongAlign's own files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress
from gateau_dagster.features.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.question_files import OfficialRow, by_id, cure, template_gaps

SYSTEM = "You're a good assistant at evaluating the quality of texts."
_ORIGIN = "LongBench_Chat of github.com/THUDM/LongAlign"
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


class LongBenchChatOptions(Section):
    """The section `evaluation.longbench_chat` of the configuration; the files are LongAlign's."""

    cases: InputAddress | None = Field(
        default=None, description="Path of test_cases.json.", examples=["LongAlign/test_cases.json"]
    )
    few_shots: InputAddress | None = Field(
        default=None, description="Path of few_shots.json.", examples=["LongAlign/few_shots.json"]
    )
    prompt: InputAddress | None = Field(
        default=None, description="Path of prompt_fs.txt.", examples=["LongAlign/prompt_fs.txt"]
    )
    form: Literal["longalign", "gateau"] = Field(
        default="longalign",
        description="How a question is asked. longalign: as its case has it. gateau: its last line is replaced by the "
        "query between the words of GATEAU's training prompt.",
    )
    max_new_tokens: int = Field(default=1024, ge=1, description="Most tokens of an answer.")


def _shots(row: OfficialRow) -> list[str]:
    if not isinstance(row.value, list):
        raise row.wrong("it is no list", "a list of objects with answer and score")
    scored = [OfficialRow(where=row.where, value=shot) for shot in row.value]
    return [text for shot in scored for text in (shot.text("answer"), str(shot.field("score")))]


def _question(
    name: str, row: OfficialRow, shots: Sequence[Sequence[str]], template: str, options: LongBenchChatOptions
) -> Question:
    query, place = row.text("query"), int(name) if name.isdecimal() else 0
    if not 1 <= place <= len(shots):
        raise row.wrong(f"idx is {name}", f"a number from 1 to {len(shots)}, as few_shots.json has elements")
    return Question(
        question_id=f"{place:02d}",
        group="Chinese" if _CHINESE.search(query) else "English",
        turns=(asked(row.text("prompt"), query, options.form),),
        generation=Generation(max_new_tokens=options.max_new_tokens),
        references=(row.text("answer"),),
        facts={"query": query, "shots": shots[place - 1], "template": template},
    )


def asked(prompt: str, query: str, form: Literal["longalign", "gateau"]) -> str:
    """Return the model's prompt; `prompt` is the document followed by the question."""
    if form == "longalign":
        return prompt
    document = prompt[: prompt.rfind(prompt.rsplit("\n", maxsplit=1)[-1])]
    return f"{document} ###Instruction: {query}\n\n\n ###Response: "


class LongBenchChat(RatedBenchmark):
    """LongBench-Chat with LongAlign's cases, scored answers and prompt."""

    name = "longbench_chat"
    title = "LongBench-Chat"
    description = (
        "Fifty questions about documents of 10k to 100k tokens, each answer rated from 1 to 10 by a judge that sees a "
        "reference and three scored answers; shown times ten."
    )
    options: LongBenchChatOptions
    floor, highest, scale = 10.0, 100.0, 10.0
    by_group = False
    groups = "language"
    again = 4
    official: ClassVar = {
        "cases": cure("test_cases.json", _ORIGIN),
        "few_shots": cure("few_shots.json", _ORIGIN),
        "prompt": cure("prompt_fs.txt", _ORIGIN),
    }
    digest_name = "longbench_chat {key}"

    def questions(self, materials: Materials) -> list[Question]:
        """Return questions of one turn, grouped by language; `facts` hold the query, scored answers and the judge's
        prompt.

        Raises:
            GateauError: a file cannot be read, or is not the published one.
        """
        cases, few_shots, prompt = map(self.file, self.official)
        template = prompt.template()
        with few_shots.understood():
            shots = [_shots(row) for row in few_shots.rows(one=True)]
        with cases.understood():
            rows = by_id(cases.rows(one=True), "idx")
            questions = [_question(name, row, shots, template, self.options) for name, row in rows]
        with prompt.understood():  # every gap can be filled
            for question in questions:
                if len(gaps := template_gaps(template)) != (wanted := 3 + len(question.facts["shots"])):
                    raise ValueError(f"it has {len(gaps)} gaps; expected {wanted}, the last one for the answer")
                self.requests(question, question.turns)
        return questions

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return the request: reference and scored answers, then the answer on one line, as in LongAlign."""
        facts, answer = question.facts, answers[0].strip().replace("\n", " ").strip()
        prompt = facts["template"].format(facts["query"], question.references[0], *facts["shots"], answer)
        return [self.request(question, SYSTEM, prompt)]
