"""Definition of a benchmark: the tables that it reads, what it measures, and what the report shows of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.evaluation.page import PageSection
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.stamp import By, fingerprint
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config
    from gateau_dagster.models.loading import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Settings of an answer's generation; every field is always sent, so that no engine's default decides.

    temperature: 0 for greedy decoding. stop: texts before which the answer ends.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question: `turns` of the user, each answered before the next one is asked.

    question_id: unique in the benchmark. group: data set, category or cell that it belongs to.
    chat: whether it goes through the tokenizer's chat template where there is one; else the text is continued.
    prefill: the beginning of the answer, given to the model.
    references: right answers. facts: what else grading needs; JSON.
    """

    question_id: str
    group: str
    turns: tuple[str, ...]
    generation: Generation
    system: str = ""
    chat: bool = True
    prefill: str = ""
    references: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a digest of all that decides the answer; it excludes what only grading reads."""
        asked = asdict(self)
        return fingerprint({name: asked[name] for name in ("turns", "generation", "system", "chat", "prefill")})


MODELS = ("base", "checkpoint")
"""The base model of the training, and its result."""


@dataclass(frozen=True, kw_only=True)
class Materials:
    """The input of a benchmark; tables are read and models loaded on demand.

    reads: the tables that may be read, from ChosenBenchmark.reads.
    shards: yields these columns of a table, shard by shard; a table over the whole data set is one frame.
    samples: returns the samples with these ids, in order of id.
    model: loads one of MODELS, or a variant by name. One at a time stays loaded, unless the caller keeps the other.
    only_tokenizer: returns a model's tokenizer by name, where it is available without the model.
    """

    config: Config
    reads: Collection[str]
    shards: Callable[[str, Sequence[str]], Iterator[pl.DataFrame]]
    samples: Callable[[Collection[str]], Sequence[Sample]]
    model: Callable[[str], LoadedModel]
    progress: Progress = silent
    only_tokenizer: Callable[[str], PreTrainedTokenizerBase] | None = None

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a model."""
        return self.model(name).tokenizer if self.only_tokenizer is None else self.only_tokenizer(name)

    def table(self, asset: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of a whole table."""
        return pl.concat(self.shards(asset, columns))


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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a comparison. `table`: Benchmark.columns. `rejected`: what could not be measured, and why."""

    table: pl.DataFrame
    rejected: Sequence[Reject] = ()


def no_settings(config: Config, options: Any) -> Mapping[str, Any]:
    """Return no settings: the result depends on the options and the models alone."""
    del config, options
    return {}


def no_check(config: Config, options: Any) -> None:
    """Accept every configuration."""
    del config, options


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The checkpoint compared with its base model, as the asset `evaluation/<name>`.

    columns: of the table; the values of those in `finite` are never null, NaN or infinite.
    reads: the tables that `run` reads beside the checkpoint, and whether a change counts by fingerprint or by content.
    run: measures; reads nothing that `reads` does not name.
    section: returns what the report shows of the table.
    """

    columns: tuple[Column, ...]
    reads: Callable[[Config, Any], Mapping[str, By]]
    run: Callable[[Materials, Any], Outcome]
    section: Callable[[pl.DataFrame], PageSection]
    finite: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A way to measure models: the checkpoint beside its base, any number of variants, or both.

    title, description: the report's heading, and the text of the asset's page.
    options: the section `evaluation.<name>` of the configuration.
    comparison: the checkpoint beside its base model. scored: the variants of an experiment, as `scores/<name>`.
    settings: what else of the configuration changes the table, beside the options, the prompt's length and template and
    the models' type.
    check: raises GateauError, before any model runs, when the configuration does not suffice; the message begins with
    the place in the file.
    check_known_models: raises GateauError, before any model runs, when a model's config.json shows that it cannot be
    measured.
    default: whether it runs when `evaluation.benchmarks` is not given.
    """

    name: str
    title: str
    description: str
    comparison: Comparison | None = None
    scored: Scored | None = None
    options: type[Section] = Section
    settings: Callable[[Config, Any], Mapping[str, Any]] = no_settings
    check: Callable[[Config, Any], None] = no_check
    check_known_models: Callable[[Config, Any], None] = no_check
    default: bool = False
    code_version: str = "1"
