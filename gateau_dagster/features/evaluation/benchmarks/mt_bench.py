"""MT-Bench: eighty questions of two turns in eight categories, rated by a judge (Zheng et al., 2023).

Questions, references and judge prompts are read from FastChat's own files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress
from gateau_dagster.features.evaluation.benchmark import Generation, JudgeRequest, Materials, Question
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.question_files import OfficialRow, by_id, cure, template_gaps

_EXACT = ("extraction", "math", "coding", "reasoning")
TEMPERATURES = {"writing": 0.7, "roleplay": 0.7, **dict.fromkeys(_EXACT, 0.0), "stem": 0.1, "humanities": 0.1}
"""Temperature of the answers, by category."""
OTHER_TEMPERATURE = 0.7
"""Temperature of the answers in any other category."""
WITH_REFERENCE = frozenset({"math", "reasoning", "coding"})
"""Categories for which the judge sees a reference answer."""
_ORIGIN = "fastchat/llm_judge/data of github.com/lm-sys/FastChat"
# Names of prompts by whether the judge sees a reference; the second turn's have the suffix below.
_SINGLE = {False: "single-v1", True: "single-math-v1"}
_PAIR = {False: "pair-v2", True: "pair-math-v1"}
_ENDINGS = ("", "-multi-turn")


class MtBenchOptions(Section):
    """The section `evaluation.mt_bench` of the configuration; the files are FastChat's."""

    questions: InputAddress | None = Field(
        default=None, description="Path of mt_bench/question.jsonl.", examples=["mt_bench/question.jsonl"]
    )
    references: InputAddress | None = Field(
        default=None, description="Path of mt_bench/reference_answer/gpt-4.jsonl.", examples=["mt_bench/gpt-4.jsonl"]
    )
    prompts: InputAddress | None = Field(
        default=None, description="Path of judge_prompts.jsonl.", examples=["mt_bench/judge_prompts.jsonl"]
    )
    max_new_tokens: int = Field(default=1024, ge=1, description="Most tokens of an answer.")
    seed: int = Field(default=0, ge=0, description="Seeds the answers in categories whose temperature is above 0.")


def _prompt(prompts: Mapping[str, OfficialRow], name: str) -> dict[str, str]:
    if name not in prompts:
        raise ValueError(f"no prompt has the name {name}")
    row = prompts[name]
    template = row.template("prompt_template")
    if not any(gap.startswith("answer") for gap in template_gaps(template)):
        raise row.wrong("prompt_template shows the judge no answer", "a gap such as {answer}")
    return {"system": row.text("system_prompt", empty=True), "user": template}


def _reference(row: OfficialRow) -> tuple[str, ...]:
    choices = row.field("choices")
    if not isinstance(choices, list) or not choices:
        raise row.wrong("choices is no list with an element", "a list of objects with turns")
    return OfficialRow(where=row.where, value=choices[0]).texts("turns")


def _question(
    name: str,
    row: OfficialRow,
    references: Mapping[str, tuple[str, ...]],
    single: Mapping[bool, Sequence[Mapping[str, str]]],
    pair: Mapping[bool, Sequence[Mapping[str, str]]],
    options: MtBenchOptions,
) -> Question:
    category, turns = row.text("category"), row.texts("turns", most=len(_ENDINGS))
    seen, temperature = category in WITH_REFERENCE, TEMPERATURES.get(category, OTHER_TEMPERATURE)
    return Question(
        question_id=name,
        group=category,
        turns=turns,
        generation=Generation(max_new_tokens=options.max_new_tokens, temperature=temperature, seed=options.seed),
        references=references.get(name, ()) if seen else (),
        facts={"single": single[seen][: len(turns)], "pair": pair[seen][: len(turns)]},
    )


class MtBench(RatedBenchmark):
    """MT-Bench with FastChat's questions and prompts."""

    name = "mt_bench"
    title = "MT-Bench"
    description = (
        "Eighty questions of two turns in eight categories, each answer rated from 1 to 10 by a judge; shown times ten."
    )
    options: MtBenchOptions
    floor, highest, scale = 10.0, 100.0, 10.0
    by_group = False
    groups = "category"
    reply_tokens = 2048
    several_turns = True
    paired = True
    official: ClassVar = {
        "questions": cure("mt_bench/question.jsonl", _ORIGIN),
        "references": cure("mt_bench/reference_answer/gpt-4.jsonl", _ORIGIN),
        "prompts": cure("judge_prompts.jsonl", _ORIGIN),
    }
    digest_name = "mt_bench {key}"

    def questions(self, materials: Materials) -> list[Question]:
        """Return the file's questions; `facts` hold the judge's prompts, `references` the right answers for the judge.

        Raises:
            GateauError: a file cannot be read, or is not the published one.
        """
        asked, right, judging = map(self.file, self.official)
        with judging.understood():
            prompts = dict(by_id(judging.rows(one=True), "name"))
            single, pair = (
                {seen: [_prompt(prompts, f"{name}{ending}") for ending in _ENDINGS] for seen, name in kinds.items()}
                for kinds in (_SINGLE, _PAIR)
            )
        with right.understood():
            references = {name: _reference(row) for name, row in by_id(right.rows(one=True), "question_id")}
        with asked.understood():
            rows = by_id(asked.rows(one=True), "question_id")
            questions = [_question(name, row, references, single, pair, self.options) for name, row in rows]
        unknown = [
            each.question_id
            for each in questions
            if each.group in WITH_REFERENCE and len(each.references) < len(each.turns)
        ]
        if unknown:
            raise right.wrong(f"no answer to every turn of question {unknown[0]}")
        with judging.understood():  # every gap can be filled
            for question in questions:
                self.requests(question, question.turns)
                self.pair_requests(question, question.turns, question.turns)
        return questions

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return a request for each turn: the first turn by itself, the second with the whole conversation."""
        return self._requests(question, "single", {"": answers})

    def pair_requests(self, question: Question, first: Sequence[str], second: Sequence[str]) -> list[JudgeRequest]:
        """Return a request for each turn with two models' answers; the one shown first is assistant A."""
        return self._requests(question, "pair", {"_a": first, "_b": second})

    def _requests(self, question: Question, kind: str, answers: Mapping[str, Sequence[str]]) -> list[JudgeRequest]:
        """Return the requests of one kind. `answers`: by the suffix of their names in the prompts."""
        texts = {"question": question.turns, "ref_answer": question.references}
        texts |= {f"answer{ending}": [text.strip() for text in given] for ending, given in answers.items()}
        words = {f"{name}_{number}": text for name, all_of in texts.items() for number, text in enumerate(all_of, 1)}
        words |= {name: all_of[0] for name, all_of in texts.items() if all_of}
        return [
            self.request(question, prompt["system"], prompt["user"].format(**words), turn)
            for turn, prompt in enumerate(question.facts[kind])
        ]
