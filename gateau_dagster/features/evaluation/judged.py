"""Define the base of benchmarks with answers that a judge rates: files, the rating in a reply, and scores."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError, redacted
from gateau_dagster.features.evaluation.benchmark import (
    JudgeRequest,
    Measured,
    Question,
    QuestionBenchmark,
    lacking_function,
)
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.grading import without_thoughts
from gateau_dagster.features.evaluation.servers import JudgeConfig

if TYPE_CHECKING:
    from gateau_dagster.config import Config


CODE_VERSION = "2"
_DOUBLE = re.compile(r"\[\[([^\[\]\n]{1,60})\]\](?!\()")
# A number in single brackets is a citation, unless the judge calls it a rating or it is the whole reply.
_SINGLE = re.compile(r"(?i)\b(?:rating|score|verdict)\b[*_\s]*(?:is|:|=)?[*_\s]*\[([^\[\]\n]{1,20})\](?![(\[\]])")
_ALONE = re.compile(r"[*_\s]*\[([^\[\]\n]{1,20})\][*_\s.]*")
_LABEL = re.compile(r"(?i)\b(?:rating|score|verdict|decision|answer)\b[*_\s\"']*(?:is|:|=)?[*_\s:]*$")
_LABEL_LENGTH = 40
_DRAFT = re.compile(r"[*_\s]*\?")
_QUOTE_BEFORE = re.compile(r"[\"'`\u201c\u2018][^\"'`\u201c\u201d\n]{0,30}$")
_QUOTE_AFTER = re.compile(r"[*_]*[\"'`\u201d\u2019]")
_RATING = re.compile(
    r"(?i)(?:(?:rating|score|my|the|is|overall|final)[\s:=]+)*(\d+(?:\.\d*)?)\s*(?:(?:/|of|out of)\s*(\d+)|points?)?"
)
_CHOICE = re.compile(r"(?i)(?:(?:assistant|model|verdict|answer)[\s:]+)*([abc]|tie)")
_CHOICES = {"a": 1.0, "b": 0.0, "c": 0.5, "tie": 0.5}
_QUOTED = 80
"""Most characters of a reply in a message."""


def rating(reply: str, *, low: float, high: float) -> float | None:
    """Return the rating of a reply; None if it has no rating, or if the last one is outside low..high.

    Thoughts are removed first. A rating is a number in double brackets: `[[8]]`, `[[ 8.5 ]]`, `**[[8]]**`, `[[8/10]]`.
    One in single brackets counts where the reply calls it a rating, as in `Rating: [8]`. `_decided` chooses among
    several.
    """
    return _decided(reply, lambda text: _rating(text, low, high))


def verdict(reply: str) -> float | None:
    """Return FastChat's `[[A]]`, `[[B]]` or `[[C]]` as 1, 0 or 0.5; None if there is none. `_decided` chooses."""
    return _decided(reply, _choice)


def quoted(reply: str) -> str:
    """Return the end of a reply, where its verdict should be, for a message: on one line, without secrets."""
    text = redacted(" ".join(reply.split())).encode("ascii" if not reply.isprintable() else "utf-8", "replace").decode()
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text).replace("'", '"')
    return f"'{shown}'" if len(shown) <= _QUOTED else f"'\u2026{shown[-_QUOTED:]}'"


def _decided(reply: str, read: Callable[[str], float | None]) -> float | None:
    """Return the last verdict of a reply without its thoughts.

    Verdicts followed by a question mark are drafts. Of several, unquoted ones precede quoted ones. Labelled ones
    ("Rating: [[8]]") precede those without a label. The last of the remaining ones counts.
    """
    text = without_thoughts(reply)
    if text is None:
        return None
    marks = [match for match in _DOUBLE.finditer(text) if not _DRAFT.match(text, match.end())]
    marks = [match for match in marks if _is_verdict(match[1])]
    if not marks:
        single = [*_SINGLE.finditer(text)] or [*filter(None, [_ALONE.fullmatch(text)])]
        return read(single[-1][1]) if single else None
    plain = [match for match in marks if not _is_quoted(text, match)] or marks
    called = [match for match in plain if _is_called(text, match)] or plain
    return read(called[-1][1])


def _is_verdict(text: str) -> bool:
    # On any scale: a rating of another scale must make the reply unreadable, and not let an earlier number count.
    text = text.strip("*_ \t")
    return _RATING.fullmatch(text) is not None or _CHOICE.fullmatch(text) is not None


def _is_quoted(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - _LABEL_LENGTH) : match.start()]
    return _QUOTE_AFTER.match(text, match.end()) is not None and _QUOTE_BEFORE.search(before) is not None


def _is_called(text: str, match: re.Match[str]) -> bool:
    before = text[max(0, match.start() - _LABEL_LENGTH) : match.start()]
    return _LABEL.search(before.rstrip("*_ \t\"'`")) is not None


def _rating(text: str, low: float, high: float) -> float | None:
    match = _RATING.fullmatch(text.strip("*_ \t"))
    if match is None or (match[2] is not None and float(match[2]) != high):
        return None
    value = float(match[1])
    return value if low <= value <= high else None


def _choice(text: str) -> float | None:
    match = _CHOICE.fullmatch(text.strip("*_ \t"))
    return None if match is None else _CHOICES[match[1].lower()]


NOTABLE_UNREADABLE = 0.05
"""Largest share of judgments without a score at which their mean can be trusted."""


def needed_judge(config: Config, benchmark: str) -> JudgeConfig:
    """Return `evaluation.judge`. Raises GateauError if it is not given."""
    judge = evaluation_of(config).judge
    if judge is None:
        raise GateauError(
            "evaluation.needs_judge",
            f"evaluation.judge: {benchmark} needs a judge, and none is configured. Give base_url and model "
            "of an OpenAI-compatible server, and the environment variable with its key",
        )
    return judge


class RatedBenchmark(QuestionBenchmark):
    """A benchmark with answers that a judge rates.

    ratings: lowest and highest rating of a reply. scale: points for each of a rating. again: more requests after an
    unreadable reply. reply_tokens: most of a reply; the authors of most benchmarks set no limit.
    several_turns: whether the report also shows the scores of each turn. paired: whether the judge can also compare
    two answers, by `pair_requests`.
    """

    unit = "points"
    ratings: ClassVar[tuple[float, float]] = (1, 10)
    scale: ClassVar[float] = 1.0
    again: ClassVar[int] = 0
    reply_tokens: ClassVar[int] = 1024
    several_turns: ClassVar[bool] = False
    paired: ClassVar[bool] = False

    @abstractmethod
    def requests(self, question: Question, answers: Sequence[str]) -> Sequence[JudgeRequest]:
        """Return the requests for a question and its answers by turn; no requests if nothing is judged."""

    def request(self, question: Question, system: str, user: str, turn: int = 0) -> JudgeRequest:
        """Return the request with a system message and the user's."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return JudgeRequest(
            question_id=question.question_id, turn=turn, messages=messages, max_tokens=self.reply_tokens
        )

    def pair_requests(self, question: Question, first: Sequence[str], second: Sequence[str]) -> Sequence[JudgeRequest]:
        """Return the requests to compare two models' answers by turn, shown in this order."""
        raise lacking_function(self, "pair_requests")

    def parse(self, reply: str) -> float | None:
        """Return the score in a reply; None if it is unreadable."""
        low, high = self.ratings
        return rating(reply, low=low, high=high)

    def grade(self, questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None) -> Measured:
        """Return `mean_scores`."""
        assert judgments is not None, "the benchmark is judged"
        return mean_scores(questions, judgments, scale=self.scale)

    def check(self) -> None:
        needed_judge(self.config, self.name)
        super().check()

    def judge_settings(self) -> dict[str, Any]:
        """Return the judge's settings that change its judgments; its address and prices do not."""
        judge = evaluation_of(self.config).judge
        if judge is None:
            return {}
        named = {"model": judge.model, "repeats": judge.repeats, **judge.changed_sampling}
        return {f"evaluation.judge.{name}": value for name, value in named.items()}


def mean_scores(questions: Sequence[Question], judgments: pl.DataFrame, *, scale: float) -> Measured:
    """Return `scale` times the mean over a question's turns of the mean over the judgments of each.

    A question with a turn without a score is rejected, because the mean of the other turns is not comparable.
    """
    found = {
        name: (count, mean)
        for name, count, mean in _turn_means(judgments)
        .group_by("question_id")
        .agg(count=pl.len(), mean=pl.col("score").mean())
        .iter_rows()
    }
    columns = ["question_id", "reply"]  # a frame of only scores has no replies to quote
    unscored = judgments.filter(pl.col("score").is_null())
    unread = dict(unscored.select(columns).iter_rows()) if {*columns} <= {*judgments.columns} else {}
    rows = []
    for question in questions:
        name, turns = question.question_id, len(question.turns)
        count, mean = found.get(name, (0, 0.0))
        value: float | Reject = scale * mean
        if count != turns:
            reason = f"{turns - count} of its {turns} turns have no judgment with a score"
            reason += f"; a reply ends with {quoted(unread[name])}" if name in unread else ""
            value = Reject(sample_id=name, reason=reason)
        rows.append((name, question.group, value))
    return Measured.of(rows)


def turn_scores(scores: pl.DataFrame, judgments: pl.DataFrame, *, scale: float) -> dict[int, pl.DataFrame]:
    """Return tables.SCORES of each single turn, for the questions in `scores` that have it, times `scale`."""
    means = _turn_means(judgments).with_columns(value=scale * pl.col("score"))
    return {
        number: scores.drop("value")
        .join(means.filter(turn=number), on="question_id", maintain_order="left")
        .select(scores.columns)
        for number in means["turn"].unique().sort()
    }


def _turn_means(judgments: pl.DataFrame) -> pl.DataFrame:
    readable = judgments.filter(pl.col("score").is_not_null())
    return readable.group_by("question_id", "turn").agg(score=pl.col("score").mean())


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Number of judgments without a score: unreadable replies, and questions with no reply at all."""

    judgments: int
    without_score: int
    unanswered: int

    @property
    def share(self) -> float:
        """Return the share of all requested judgments; 0 if there are none."""
        total = self.judgments + self.unanswered
        return (self.without_score + self.unanswered) / total if total else 0.0

    @property
    def notable(self) -> bool:
        """Return whether the share is larger than an undecided judge occasionally produces."""
        return self.share > NOTABLE_UNREADABLE


def unreadable(judgments: pl.DataFrame, rejected: pl.DataFrame) -> Unreadable:
    """Count the rows of tables.JUDGMENTS without a score. `rejected`: the rejected questions, tables.REJECTED."""
    return Unreadable(
        judgments=judgments.height, without_score=judgments["score"].null_count(), unanswered=rejected.height
    )
