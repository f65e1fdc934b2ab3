"""Send a model's answers to a judge, several at a time; every reply is stored before it is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.asking import Asking, Exchange
from gateau_dagster.evaluation.judging.cost import cost_sentence
from gateau_dagster.evaluation.judging.replies import Judge, Replies, ServerCall, Usage
from gateau_dagster.evaluation.server_client import UnansweredError
from gateau_dagster.progress import Progress, silent

Texts = Mapping[str, Mapping[int, str]]
"""Answers by question and turn."""


@dataclass(frozen=True, kw_only=True)
class JudgmentRequest:
    """A requested judgment of the answer to a turn of a question; `part` is the name of the turn in rejects."""

    question_id: str
    turn: int
    asked: ServerCall
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Judgments and rejects.

    `table`: tables.JUDGMENTS. `rejected`: questions with a judgment that got no reply. `new`: what was paid for.
    """

    table: pl.DataFrame
    rejected: Sequence[Reject]
    new: Usage

    @property
    def unanswered(self) -> list[str]:
        """Return the questions that another server, or more patience, might judge; `means` is the digest of these
        settings.
        """
        return [each.sample_id for each in self.rejected]


def wanted_judgments(
    questions: Sequence[Question], given: Texts, benchmark: RatedBenchmark, settings: JudgeConfig
) -> list[JudgmentRequest]:
    """Return the judgments of one model's answers, by question; a question without an answer to every turn has none."""
    found = []
    for question in questions:
        texts = given.get(question.question_id, {})
        if all(turn in texts for turn in range(len(question.turns))):
            found += (
                JudgmentRequest(
                    question_id=each.question_id, turn=each.turn, asked=ServerCall.of(settings, each, repeat)
                )
                for each in benchmark.requests(question, [texts[turn] for turn in sorted(texts)])
                for repeat in range(settings.repeats)
            )
    return found


def answers_by_question(answers: pl.DataFrame) -> dict[str, dict[int, str]]:
    """Return the texts of tables.ANSWERS by question and turn."""
    found: dict[str, dict[int, str]] = {}
    for question, turn, answer in answers.select("question_id", "turn", "answer").iter_rows():
        found.setdefault(question, {})[turn] = answer
    return found


def longest_answers(questions: Sequence[Question]) -> dict[str, dict[int, str]]:
    """Return placeholder answers of the greatest length by question and turn; a common word is one token."""
    return {
        each.question_id: dict.fromkeys(range(len(each.turns)), " the" * each.generation.max_new_tokens)
        for each in questions
    }


def judge_answers(
    wanted: Sequence[JudgmentRequest],
    parse: Callable[[str], float | None],
    judge: Judge,
    replies: Replies,
    settings: JudgeConfig,
    progress: Progress = silent,
    *,
    again: int = 0,
) -> Judged:
    """Return every judgment, from the stored replies or from the judge.

    parse: returns the score in a reply; None where it is unreadable. again: further requests after such a reply.

    The first new request is sent alone, so that a common fault fails once. A judgment without a reply is tried once
    more, after all others, if another try may help.

    Raises:
        UnusableServerError: the judge answers none of them.
        BudgetError: the budget is used up; replies that arrived are stored.
        TransientError: the judge seems to be down.
    """
    work: Asking[JudgmentRequest, float] = Asking(parse, again, judge, replies, settings)
    rows: list[Mapping[str, Any]] = []
    rejected: dict[str, list[str]] = {}
    kept = sum(each.asked in replies for each in wanted)
    progress(0, len(wanted), "judgments", f"{kept:,} known before; the first new one is asked alone")
    done = 0
    for result in work.results(wanted):
        if result is not None:
            each, made = result
            done += 1
            if isinstance(made, UnansweredError):
                rejected.setdefault(each.question_id, []).append(f"{each.part or f'turn {each.turn}'}: {made}")
            else:
                rows.append(_row(each, made))
        spent = f"{cost_sentence(settings, work.account.new)} so far"
        progress(done, len(wanted), "judgments", ", ".join(filter(None, [spent, judge.under_way()])))
    if not rows:
        work.patience.check()
    table = pl.DataFrame(rows, schema=tables.schema(tables.JUDGMENTS), orient="row")
    return Judged(
        table=table.sort("question_id", "turn", "repeat"),
        rejected=[Reject(sample_id=name, reason="; ".join(reasons)) for name, reasons in sorted(rejected.items())],
        new=work.account.new,
    )


def _row(wanted: JudgmentRequest, made: Exchange[float]) -> Mapping[str, Any]:
    """Return a row of tables.JUDGMENTS."""
    return {
        "question_id": wanted.question_id,
        "turn": wanted.turn,
        "repeat": wanted.asked.repeat,
        "digest": wanted.asked.digest,
        "score": made.value,
        "prompt": json.dumps([dict(each) for each in wanted.asked.messages], ensure_ascii=False),
        "reply": made.reply.text,
        "requests": made.usage.requests,
        "prompt_tokens": made.usage.prompt_tokens,
        "reply_tokens": made.usage.reply_tokens,
        "seconds": made.reply.seconds,
    }
