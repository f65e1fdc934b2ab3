"""LongBench rated by a judge as in GATEAU: questions from 1 to 3, summaries from 1 to 5.

The judge's prompts are read from GATEAU's own files (S1s-Z/GATEAU). An answer that is all wrong has the lowest rating,
which is a third of the points for questions and a fifth for summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
from pydantic import Field

from gateau_dagster.config.addresses import InputAddress
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import JudgeRequest, Materials, Measured, Question
from gateau_dagster.evaluation.judged import RatedBenchmark, mean_scores
from gateau_dagster.evaluation.longbench import SUITES, LongBenchOptions, LongBenchQuestions
from gateau_dagster.evaluation.question_files import QuestionFiles, template_gaps

SYSTEM = "You're a good assistant at evaluating the quality of texts."
SUMMARIES = ("gov_report", "qmsum", "multi_news", "vcsum")
HIGHEST = {name: 5 if name in SUMMARIES else 3 for name in SUITES["gateau"]}
"""Highest rating of the judge's scale, by data set; the lowest is 1."""


class LongBenchJudgedOptions(LongBenchOptions):
    """The data sets to run, the location of their files, and the judge's prompts."""

    question_prompt: InputAddress | None = Field(
        default=None, description="Path of GATEAU's prompt_for_qa.txt.", examples=["prompts/question.txt"]
    )
    summary_prompt: InputAddress | None = Field(
        default=None, description="Path of GATEAU's prompt_for_sum.txt.", examples=["prompts/summary.txt"]
    )


class LongBenchJudged(LongBenchQuestions, RatedBenchmark):
    """LongBench rated with GATEAU's prompts."""

    name = "longbench_judged"
    title = "LongBench by a judge"
    description = (
        "Questions about long documents and summaries, each answer rated by a judge beside the right ones: 1 to 3 for "
        "questions, 1 to 5 for summaries, in per cent of the highest rating."
    )
    options: LongBenchJudgedOptions
    unit = "%"
    # The mean of the twelve sets' lowest values: a third of 100 for eight of them, a fifth for four.
    floor = sum(100 / highest for highest in HIGHEST.values()) / len(HIGHEST)
    ratings = (1, 5)
    again = 4
    asks_as = "longbench"

    def questions(self, materials: Materials) -> list[Question]:
        """Return LongBench's questions; `facts` also hold the judge's prompt."""
        templates = [_template(file, gaps) for file, gaps in zip(self._prompts(), (3, 2), strict=True)]
        return [
            replace(each, facts={**each.facts, "template": templates[each.group in SUMMARIES]})
            for each in super().questions(materials)
        ]

    def requests(self, question: Question, answers: Sequence[str]) -> list[JudgeRequest]:
        """Return the request: the answer on one line, as in GATEAU, and the right answers as a Python list."""
        right, answer = str([*question.references]), answers[0].strip().replace("\n", " ")
        given = (right, answer) if question.group in SUMMARIES else (question.facts["input"], right, answer)
        return [self.request(question, SYSTEM, question.facts["template"].format(*given))]

    def grade(self, questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None) -> Measured:
        """Return the rating in per cent of the highest one; a rating above that counts as missing."""
        assert judgments is not None, "the benchmark is judged"
        highest = pl.DataFrame({"question_id": [each.question_id for each in questions]}).with_columns(
            highest=pl.Series([float(HIGHEST[each.group]) for each in questions], dtype=pl.Float64)
        )
        shares = judgments.join(highest, on="question_id", how="inner", maintain_order="left").with_columns(
            score=pl.when(pl.col("score") <= pl.col("highest")).then(pl.col("score") / pl.col("highest"))
        )
        return mean_scores(questions, shares, scale=100)

    def files(self) -> Sequence[QuestionFiles]:
        return [*super().files(), *self._prompts()]

    def check(self) -> None:
        """Raise GateauError for missing files, a missing judge, and sets that GATEAU does not have judged."""
        others = [name for name in self.options.names if name not in HIGHEST]
        if others:
            raise GateauError(
                "evaluation.task",
                f"{self.place('sets')}: {', '.join(others)} are not judged: name some of {', '.join(HIGHEST)}, or "
                "gateau",
            )
        super().check()

    def _prompts(self) -> list[QuestionFiles]:
        """Return the judge's prompts for questions and for summaries."""
        origin = "from https://github.com/S1s-Z/GATEAU (folder train/LongBench), and give its path"
        named = {"question_prompt": "prompt_for_qa.txt", "summary_prompt": "prompt_for_sum.txt"}
        return [
            QuestionFiles(
                config=self.config, place=self.place(key), path=getattr(self.options, key), cure=f"get {name} {origin}"
            )
            for key, name in named.items()
        ]


def _template(prompt: QuestionFiles, gaps: int) -> str:
    text = prompt.text(prompt.only())
    with prompt.understood():
        if (found := template_gaps(text)) != [""] * gaps:
            shown = " ".join(f"{{{name}}}" for name in found) or "none"
            raise ValueError(f"its gaps are: {shown}; expected {{}} {gaps} times")
    return text
