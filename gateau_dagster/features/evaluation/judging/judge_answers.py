"""Judge single answers of a model, or pairs of answers of two models in both orders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.costs import Usage
from gateau_dagster.data.sample import Reject
from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.judging.asking import Asking, Exchange, cost_sentence
from gateau_dagster.features.evaluation.judging.replies import Judge, Replies, ServerCall
from gateau_dagster.features.evaluation.server_client import UnansweredError, least_tokens, partly_read, unread_tokens
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.progress import Progress, silent
from gateau_dagster.tables import Column, schema

_MOST_LETTERS = 65_536  # of a reply that a table keeps
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

    `table`: tables.JUDGMENTS. `rejected`: questions with a judgment without a reply. `new`: the paid usage.
    """

    table: pl.DataFrame
    rejected: Sequence[Reject]
    new: Usage

    @property
    def unanswered(self) -> list[str]:
        """Return the questions that another server or timeout might judge; `means`: digest of these settings."""
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

    parse: returns the score in a reply; None if it is unreadable. again: how often it is requested again.

    The first new request is sent before the others, so that a common fault fails once. A judgment without a
    reply is tried once more, after all others, if another try may help.

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
                # A reject and not an error: one request without a reply must not cost the replies that are paid for.
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


def partly_read_judgments(judgments: pl.DataFrame) -> str:
    """Return a sentence about prompts in tables.JUDGMENTS that the judge read in part; empty without any."""
    each = judgments.select("prompt", pl.col("prompt_tokens") // pl.col("requests")).iter_rows()
    counts = [(least_tokens(prompt), read) for prompt, read in each if read]
    found = [(least, read) for least, read in counts if unread_tokens(least, read)]
    return partly_read(judgments.height, found, at_least=True)


def _row(wanted: JudgmentRequest, made: Exchange[float]) -> Mapping[str, Any]:
    return {
        "question_id": wanted.question_id,
        "turn": wanted.turn,
        "repeat": wanted.asked.repeat,
        "digest": wanted.asked.digest,
        "score": made.value,
        "prompt": json.dumps([dict(each) for each in wanted.asked.messages], ensure_ascii=False),
        "reply": made.reply.text[-_MOST_LETTERS:],  # a verdict is at the end
        "requests": made.usage.requests,
        "prompt_tokens": made.usage.prompt_tokens,
        "reply_tokens": made.usage.reply_tokens,
        "seconds": made.reply.seconds,
    }


# Two models side by side: wins, ties, losses, and the judge's position bias.


PAIRWISE = (
    Column(name="one", dtype=pl.String(), description="A variant."),
    Column(name="other", dtype=pl.String(), description="The variant that it is set against."),
    Column(name="question_id", dtype=pl.String(), description="Id of the question, unique in its benchmark."),
    Column(name="turn", dtype=pl.Int32(), description="0 for the first turn of the question."),
    Column(
        name="shown_first",
        dtype=pl.Float64(),
        description="1: `one` is better, 0: `other` is, 0.5: a tie, where `one` is shown first; null: unreadable.",
        nullable=True,
    ),
    Column(name="shown_second", dtype=pl.Float64(), description="Likewise where `one` is shown second.", nullable=True),
    Column(
        name="outcome",
        dtype=pl.String(),
        description="Of `one`: win or loss where both orders say so, else tie; null if one cannot be read.",
        nullable=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Match:
    """The answers of `one` and `other` to a turn, as requests to the judge in both orders."""

    one: str
    other: str
    question_id: str
    turn: int
    first: ServerCall
    second: ServerCall


def matches(
    pairs: Sequence[Sequence[str]],
    questions: Sequence[Question],
    texts: Mapping[str, Mapping[str, Mapping[int, str]]],
    benchmark: RatedBenchmark,
    settings: JudgeConfig,
) -> list[Match]:
    """Return the matches of each pair, over the questions that both answered in all turns.

    texts: the answers by variant, question and turn.
    """
    found = []
    for one, other in pairs:
        for question in questions:
            ours, theirs = (texts[name].get(question.question_id, {}) for name in (one, other))
            if all(turn in ours and turn in theirs for turn in range(len(question.turns))):
                left, right = ([each[turn] for turn in sorted(each)] for each in (ours, theirs))
                # Both orders, at twice the price: the position bias of a judge may be larger than the difference of two
                # models.
                ahead = benchmark.pair_requests(question, left, right)
                behind = benchmark.pair_requests(question, right, left)
                found += (
                    Match(
                        one=one,
                        other=other,
                        question_id=first.question_id,
                        turn=first.turn,
                        first=ServerCall.of(settings, first),
                        second=ServerCall.of(settings, second),
                    )
                    for first, second in zip(ahead, behind, strict=True)
                )
    return found


def wanted_of(found: Sequence[Match]) -> list[JudgmentRequest]:
    """Return the requested judgments: each request once, whatever pairs it belongs to."""
    wanted = {
        asked.digest: JudgmentRequest(question_id=each.question_id, turn=each.turn, asked=asked)
        for each in found
        for asked in (each.first, each.second)
    }
    return [*wanted.values()]


def pairwise_table(found: Sequence[Match], judgments: pl.DataFrame) -> pl.DataFrame:
    """Return PAIRWISE from the judgments of `wanted_of`; a judgment scores the answer that is shown first."""
    scores: dict[str, float | None] = dict(judgments.select("digest", "score").iter_rows())
    rows = []
    for each in found:
        first, second = scores.get(each.first.digest), scores.get(each.second.digest)
        turned = None if second is None else 1.0 - second
        rows.append((each.one, each.other, each.question_id, each.turn, first, turned, _outcome(first, turned)))
    return pl.DataFrame(rows, schema=schema(PAIRWISE), orient="row")


def _outcome(first: float | None, second: float | None) -> str | None:
    # FastChat's rule. A judge that prefers whatever is shown first changes its verdict with the order, so that is a
    # tie.
    if first is None or second is None:
        return None
    return {(1.0, 1.0): "win", (0.0, 0.0): "loss"}.get((first, second), "tie")


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The counts of one pair.

    consistent: share of the readable turns with the same verdict in both orders. bias: in -1..1, how much more often
    the answer that is shown first is preferred; 0 for a judge without position bias.
    """

    one: str
    other: str
    wins: int
    ties: int
    losses: int
    unreadable: int
    consistent: float
    bias: float


def tallies(table: pl.DataFrame) -> list[Tally]:
    """Return a Tally for each pair of a PAIRWISE table, in its order."""
    found = []
    for (one, other), rows in table.group_by("one", "other", maintain_order=True):
        read = rows.filter(pl.col("outcome").is_not_null())
        count, outcomes = max(1, read.height), read["outcome"]
        # `one` is first in `shown_first`; `other` is first in `shown_second`, and preferred where that is a loss.
        preferred = float((read["shown_first"] - read["shown_second"]).sum())
        found.append(
            Tally(
                one=str(one),
                other=str(other),
                wins=int((outcomes == "win").sum()),
                ties=int((outcomes == "tie").sum()),
                losses=int((outcomes == "loss").sum()),
                unreadable=rows.height - read.height,
                consistent=float((read["shown_first"] == read["shown_second"]).sum()) / count,
                bias=preferred / count,
            )
        )
    return found
