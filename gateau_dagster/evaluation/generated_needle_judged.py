"""LongAlign's needle rated from 1 to 10 by a judge that sees the needle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gateau_dagster.evaluation.benchmark import JudgeRequest, Materials, Question
from gateau_dagster.evaluation.generated_needle import GeneratedNeedleQuestions
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.question_files import QuestionFiles, template_gaps


class GeneratedNeedleJudged(GeneratedNeedleQuestions, RatedBenchmark):
    """LongAlign's needle by its judge."""

    name = "generated_needle_judged"
    title = "Needle in a haystack by a judge"
    description = (
        "A sentence hidden at a depth of a text of a length, and asked for; each answer rated from 1 to 10 by a judge "
        "that sees the sentence."
    )
    floor, highest = 1.0, 10.0
    again = 4
    asks_as = "generated_needle"

    def files(self) -> Sequence[QuestionFiles]:
        return [*super().files(), self._judge_files()]

    def questions(self, materials: Materials) -> list[Question]:
        """Return the questions; `facts` also hold the judge's system message and prompt."""
        system, prompt = self.judge_texts()
        return [
            replace(each, facts={**each.facts, "judge_system": system, "judge_prompt": prompt})
            for each in super().questions(materials)
        ]

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return the judge request with the needle and the stripped answer."""
        prompt = question.facts["judge_prompt"].replace("{prediction}", answers[0].strip())
        return [self.request(question, question.facts["judge_system"], prompt)]

    def judge_texts(self) -> tuple[str, str]:
        """Return the judge's system message and its prompt, in which only {prediction} is left to fill.

        Raises GateauError where the official files are missing or differ.
        """
        files = self._judge_files()
        code, settings = files.find()
        names = ("SYSTEM_TEMPLATE", "USER_TEMPLATE", "CRITERIA")
        system, user, criteria = (files.assigned(code, name)[0] for name in names)
        opening = files.texts_in(code, "get_criteria")[0]
        asked: Any = files.mapping(settings).get("prompt")
        told = opening + "".join(f"{name}: {text}\n" for name, text in criteria.items())
        with files.understood(code.label):
            template_gaps(user)
            before, after = user.split("{prediction}")
            fill = {"criteria": told, "reference": asked["needle"], "input": asked["retrieval_question"]}
            return system, "{prediction}".join(part.format(**fill) for part in (before, after))

    def _judge_files(self) -> QuestionFiles:
        return self._official("eval.py", "config-eval.yaml", key=f"{self.place('official')}: judge")
