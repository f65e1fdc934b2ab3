"""LongBench rated by a judge as in GATEAU: questions from 1 to 3, summaries from 1 to 5.

The judge's prompts are read from GATEAU's own files (S1s-Z/GATEAU). An answer that is all wrong has the lowest rating,
which is a third of the points for questions and a fifth for summaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import Field

from gateau_dagster.config.addresses import InputAddress
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark, JudgeRequest, Judging, Materials, Measured, Question, Scored
from gateau_dagster.evaluation.judged import mean_scores, needed_judge, rating
from gateau_dagster.evaluation.longbench import (
    SUITES,
    LongBenchOptions,
    check_question_files,
    file_settings,
    kind_of,
    length_of,
    read_questions,
)
from gateau_dagster.evaluation.question_files import check_files, files_digest, question_files, template_gaps, text_of

if TYPE_CHECKING:
    from gateau_dagster.config import Config


_NAME = "longbench_judged"
SYSTEM = "You're a good assistant at evaluating the quality of texts."
JUDGE_TOKENS = 1024
"""Most tokens of a reply, which should be a rating alone; GATEAU sets no limit."""
AGAIN = 4
"""Further requests for a reply without a rating."""
SUMMARIES = ("gov_report", "qmsum", "multi_news", "vcsum")
HIGHEST = {name: 5 if name in SUMMARIES else 3 for name in SUITES["gateau"]}
"""Highest rating of the judge's scale, by data set; the lowest is 1."""


class LongBenchJudgedOptions(LongBenchOptions):
    """The data sets to run, the location of their files, and the judge's prompts."""

    question_prompt: InputAddress | None = Field(default=None, description="GATEAU's prompt_for_qa.txt.")
    summary_prompt: InputAddress | None = Field(default=None, description="GATEAU's prompt_for_sum.txt.")


def _prompt_files(options: LongBenchJudgedOptions) -> dict[str, tuple[str | None, str]]:
    """Return path and remedy by place."""
    origin = "from https://github.com/S1s-Z/GATEAU (folder train/LongBench), and give its path"
    return {
        f"evaluation.{_NAME}.question_prompt": (options.question_prompt, f"get prompt_for_qa.txt {origin}"),
        f"evaluation.{_NAME}.summary_prompt": (options.summary_prompt, f"get prompt_for_sum.txt {origin}"),
    }


def _questions(materials: Materials, options: LongBenchJudgedOptions) -> list[Question]:
    """Return LongBench's questions; `facts` also hold the judge's prompt."""
    templates = []
    for gaps, (place, (path, cure)) in zip((3, 2), _prompt_files(options).items(), strict=True):
        (file,) = question_files(materials.config, place, path, cure=cure)
        templates.append(text_of(file, place))
        try:
            if (found := template_gaps(templates[-1])) != [""] * gaps:
                shown = " ".join(f"{{{name}}}" for name in found) or "none"
                raise ValueError(f"its gaps are: {shown}; expected {{}} {gaps} times")
        except ValueError as error:
            raise GateauError(f"{place}: {path} is not the published file ({error}); {cure}") from error
    return [
        replace(each, facts={**each.facts, "template": templates[each.group in SUMMARIES]})
        for each in read_questions(materials.config, options, _NAME)
    ]


def requests_of(question: Question, answers: Sequence[str], options: LongBenchJudgedOptions) -> list[JudgeRequest]:
    """Return the request: the answer on one line, as in GATEAU, and the right answers as a Python list."""
    del options
    right, answer = str([*question.references]), answers[0].strip().replace("\n", " ")
    given = (right, answer) if question.group in SUMMARIES else (question.facts["input"], right, answer)
    prompt = question.facts["template"].format(*given)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]
    return [JudgeRequest(question_id=question.question_id, turn=0, messages=messages, max_tokens=JUDGE_TOKENS)]


def grade(
    questions: Sequence[Question],
    answers: pl.DataFrame,
    judgments: pl.DataFrame | None,
    options: LongBenchJudgedOptions,
) -> Measured:
    """Return the rating in per cent of the highest one; a rating above that counts as missing."""
    del answers, options
    assert judgments is not None
    highest = pl.DataFrame({"question_id": [each.question_id for each in questions]}).with_columns(
        highest=pl.Series([float(HIGHEST[each.group]) for each in questions], dtype=pl.Float64)
    )
    shares = judgments.join(highest, on="question_id", how="inner", maintain_order="left").with_columns(
        score=pl.when(pl.col("score") <= pl.col("highest")).then(pl.col("score") / pl.col("highest"))
    )
    return mean_scores(questions, shares, scale=100)


def _settings(config: Config, options: LongBenchJudgedOptions) -> Mapping[str, Any]:
    own = {
        place: files_digest(config, place, path, cure=cure) for place, (path, cure) in _prompt_files(options).items()
    }
    return {**file_settings(config, options, _NAME), **own}


def _check(config: Config, options: LongBenchJudgedOptions) -> None:
    """Raise GateauError for missing files, a missing judge, and sets that GATEAU does not have judged."""
    others = [name for name in options.names if name not in HIGHEST]
    if others:
        raise GateauError(
            f"evaluation.{_NAME}.sets: {', '.join(others)} are not judged: name some of {', '.join(HIGHEST)}, or gateau"
        )
    check_question_files(config, options, _NAME)
    for place, (path, cure) in _prompt_files(options).items():
        check_files(config, place, path, cure=cure)
    needed_judge(config, _NAME)


BENCHMARK = Benchmark(
    name=_NAME,
    title="LongBench by a judge",
    description="Questions about long documents and summaries, each answer rated by a judge beside the right ones: 1 "
    "to 3 for questions, 1 to 5 for summaries, in per cent of the highest rating.",
    options=LongBenchJudgedOptions,
    settings=_settings,
    check=_check,
    scored=Scored(
        unit="%",
        # The mean of the twelve sets' lowest values: a third of 100 for eight of them, a fifth for four.
        floor=sum(100 / highest for highest in HIGHEST.values()) / len(HIGHEST),
        groups="data set",
        groupings={"length": length_of, "kind of task": kind_of},
        questions=_questions,
        grade=grade,
        judging=Judging(requests=requests_of, parse=partial(rating, low=1, high=5), again=AGAIN),
        asks_as="longbench",
    ),
)
