"""Interface of a benchmark that compares any number of models: one value for each question that a model answers."""

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
    """The values of one model. `table`: tables.SCORES. `rejected`: questions without a value, and why."""

    table: pl.DataFrame
    rejected: Sequence[Reject] = ()


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """A request to judge one answer. messages: `role` and `content`. turn: of the question."""

    question_id: str
    turn: int
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Judging:
    """The judging of answers.

    requests: returns the requests for one question and its answers by turn; none where nothing is judged.
    parse: returns the score in a reply, None where it is unreadable. again: further requests after an unreadable reply.
    """

    requests: Callable[[Question, Sequence[str], Any], Sequence[JudgeRequest]]
    parse: Callable[[str], float | None]
    again: int = 0


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """The comparison of two models' answers to a question.

    requests: for one question and its answers by turn, first of the model shown first, then of the other one.
    parse: 1 where the first is better, 0 where the second is, 0.5 for a tie; None where the reply is unreadable.
    """

    requests: Callable[[Question, Sequence[str], Sequence[str], Any], Sequence[JudgeRequest]]
    parse: Callable[[str], float | None]


def nothing_read(config: Config, options: Any) -> Mapping[str, By]:
    """Return no tables, for a benchmark whose questions come from its own files."""
    del config, options
    return {}


_BOUNDS = {"%": (0.0, 100.0), "share found": (0.0, 1.0), "NLL": (0.0, inf), "PPL": (1.0, inf)}
"""Least and greatest value, by unit."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A benchmark that measures one model at a time, by `questions` and `grade`, or by `measure` alone.

    unit: of a value, such as "%". higher: whether more is better.
    floor, highest: values of all-wrong and, where the unit does not define it, of all-right answers.
    by_group: whether the total is the mean of the groups' means; else of all questions.
    groups: what the questions' groups are. groupings: further groupings in the report: a heading, and the group of a
    question by its id. Groups that are called "length" are plotted in order.
    by_turn: returns the scores of each turn alone, by turn (0 for the first one), from scores and judgments of
    questions with several turns; a turn without any score is left out.
    by_base: whether questions depend on the base model, for example because its tokenizer measures texts.
    grid: length and depth (0 to 1) of a needle question, by its id; for a heat map.
    reads: tables of the store that are read beside the model, as in Comparison.reads.
    questions: returns the questions.
    grade: returns a value for each question, from tables.ANSWERS and, where `judging` is given, tables.JUDGMENTS.
    pairing: how a judge compares two variants, where it can.
    asks_as: another benchmark, listed before this one, with the same questions and ids, whose answers are reused.
    sizes: returns most tokens of prompt and answer per question, for estimates, where making questions takes long.
    probe: reads enough of the files to know that questions can be made, where making them takes long or there are none;
    raises GateauError.
    measure: for a benchmark that generates nothing; it loads the variant of this name by `Materials.model`.
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
        """Return the least and the greatest value of any answers; no interval extends beyond them."""
        return _BOUNDS.get(self.unit, (-inf, inf)) if self.highest is None else (self.floor, self.highest)

    def __post_init__(self) -> None:
        assert (self.measure is None) == (self.questions is not None and self.grade is not None), "one of the two ways"
