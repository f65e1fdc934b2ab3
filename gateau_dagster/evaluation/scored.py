"""What makes a benchmark comparable between any number of models: a value for each question that one answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.storage.stamp import By

if TYPE_CHECKING:
    from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`table`: tables.SCORES. `rejected`: questions without a value, and why."""

    table: pl.DataFrame
    rejected: Sequence[Reject] = ()


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """One answer put before a judge. messages: `role` and `content`. turn: of the question."""

    question_id: str
    turn: int
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How answers are judged.

    requests: for one question and its answers by turn; none where nothing is to be judged.
    parse: the score in a reply, None where there is none that can be read. again: how often an unreadable
    reply is asked for once more.
    """

    requests: Callable[[Question, Sequence[str], Any], Sequence[JudgeRequest]]
    parse: Callable[[str], float | None]
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """How two models' answers to a question are set against each other.

    requests: for one question and its answers by turn, of the model that is shown first and of the other one.
    parse: 1 where the first is the better one, 0 where the second is, 0.5 for a tie; None where nothing can be read.
    """

    requests: Callable[[Question, Sequence[str], Sequence[str], Any], Sequence[JudgeRequest]]
    parse: Callable[[str], float | None]


def nothing_read(config: Config, options: Any) -> Mapping[str, By]:
    """Of a benchmark whose questions come from its own files."""
    del config, options
    return {}


_BOUNDS = {"%": (0.0, 100.0), "share found": (0.0, 1.0), "NLL": (0.0, inf), "PPL": (1.0, inf)}
"""By unit."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A benchmark, one model at a time; either `questions` and `grade`, or `measure` alone.

    unit: of a value, such as "%". higher: whether more is better. floor, highest: what answers are worth that are all
    wrong, and all right where the unit does not say that.
    by_group: whether the total is the mean of the groups' means; else of all questions.
    groups: what the questions' groups are. groupings: what else the report shows values by: a heading, and the group of
    a question, by its id. Groups that are called "length" are drawn in their order.
    by_turn: from the scores and the judgments of questions with several turns, the scores of each turn alone, by
    turn (0 for the first one); a turn of which nothing is known is not there.
    by_base: whether the model that is trained from has a part in what is asked: its tokenizer measures texts, say.
    grid: of a needle in a haystack: length and depth (0 to 1) of a question, by its id; for a heat map.
    reads: tables of the store, beside the model; see Benchmark.reads.
    questions: what is asked. cut: tokens that a prompt may have in all, by options; its middle is cut out; None: never.
    grade: from the questions, tables.ANSWERS and, where `judging` is given, tables.JUDGMENTS to a value for each.
    pairing: how any two variants are set against each other, where a judge can.
    asks_as: a benchmark before this one that asks the same questions by the same ids: its answers count here, too.
    sizes: of each question the tokens of prompt and answer, at most, where making them takes long; for estimates.
    probe: reads of its files what tells that questions can be made, where making them takes long or there are none;
        raises GateauError.
    measure: of a benchmark that generates nothing: `Materials.model` is asked for the variant of this name.
    """

    unit: str
    higher: bool = True
    floor: float = 0.0
    highest: float | None = None
    by_group: bool = True
    groups: str = "group"
    groupings: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    by_turn: Callable[[pl.DataFrame, pl.DataFrame], Mapping[int, pl.DataFrame]] | None = None
    by_base: bool = False
    grid: Callable[[str], tuple[int, float]] | None = None
    reads: Callable[[Config, Any], Mapping[str, By]] = nothing_read
    questions: Callable[[Materials, Any], Sequence[Question]] | None = None
    grade: Callable[[Sequence[Question], pl.DataFrame, pl.DataFrame | None, Any], Measured] | None = None
    measure: Callable[[Materials, str, Any], Measured] | None = None
    judging: Judging | None = None
    pairing: Pairing | None = None
    asks_as: str = ""
    sizes: Callable[[Config, Any], Sequence[tuple[float, float]]] | None = None
    probe: Callable[[Materials, Any], None] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that any answers can be worth: no interval reaches beyond."""
        return _BOUNDS.get(self.unit, (-inf, inf)) if self.highest is None else (self.floor, self.highest)

    def __post_init__(self) -> None:
        assert (self.measure is None) == (self.questions is not None and self.grade is not None), "one of the two ways"
