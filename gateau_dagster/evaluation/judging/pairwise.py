"""Compare two models' answers in both orders: wins, ties, losses, and the judge's position bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.judge_answers import JudgmentRequest
from gateau_dagster.evaluation.judging.replies import ServerCall
from gateau_dagster.tables import Column, schema

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
        description="Of `one`: win or loss where both orders say so, else tie; null where one cannot be read.",
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
    """Return the outcome by FastChat's rule: a verdict that changes with the order is a tie."""
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
