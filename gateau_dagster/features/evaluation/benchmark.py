"""Define benchmarks: their questions or measurements, their values, and their section of the report."""

# Why a value for each question, and not one score for a model: models are compared question by question, which needs
# far fewer questions. The report groups the same values by length or data set, and questions that are in the data can
# be left out afterwards.
#
# Why questions do not depend on the model that answers: otherwise its values could not be set beside another's. Where
# lengths count, the base model's tokenizer counts them for all variants.

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.question_files import QuestionFiles
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.progress import Progress, silent
from gateau_dagster.readable import PageChart
from gateau_dagster.registry import Returned, full_version, shown_value
from gateau_dagster.storage.stamp import By, fingerprint
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel


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
    chat: whether it goes through the tokenizer's chat template, if there is one; otherwise the text is continued.
    earlier: role (user or assistant) and content of the given messages before the first turn; none is truncated.
    prefill: the beginning of the answer, which the model receives.
    references: right answers. facts: other data for grading, as JSON.
    """

    question_id: str
    group: str
    turns: tuple[str, ...]
    generation: Generation
    system: str = ""
    chat: bool = True
    prefill: str = ""
    earlier: tuple[tuple[str, str], ...] = ()
    references: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a digest of everything that determines the answer; fields for grading are excluded."""
        # Without references and facts: a corrected reference grades the kept answers again, and no model is asked.
        asked, names = asdict(self), ("turns", "generation", "system", "chat", "prefill")
        return fingerprint({name: asked[name] for name in (*names, *(["earlier"] if self.earlier else []))})


def id_part(place: int) -> Callable[[str], str]:
    """Return a function that returns one part of a question's id; slashes separate the parts."""
    return lambda question_id: question_id.split("/")[place]


MODELS = (BASE, CHECKPOINT)
"""The base model of training, and the trained model."""


@dataclass(frozen=True, kw_only=True)
class Materials:
    """The input of a benchmark; tables are read and models loaded on demand.

    reads: the tables that may be read, including those of Benchmark.reads.
    shards: yields these columns of a table, shard by shard; a table over the whole data set is one frame.
    samples: returns the samples with these ids, in order of id.
    model: loads one of MODELS, or a variant by name. One model at a time stays loaded, unless the caller keeps another.
    only_tokenizer: returns a model's tokenizer by name, if it is available without the model.
    kept: objects that a benchmark keeps from one model to the next, by its own keys.
    """

    config: Config
    reads: Collection[str]
    shards: Callable[[str, Sequence[str]], Iterator[pl.DataFrame]]
    samples: Callable[[Collection[str]], Sequence[Sample]]
    model: Callable[[str], LoadedModel]
    progress: Progress = silent
    only_tokenizer: Callable[[str], PreTrainedTokenizerBase] | None = None
    kept: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self, name: str) -> PreTrainedTokenizerBase:
        """Return the tokenizer of a model."""
        return self.model(name).tokenizer if self.only_tokenizer is None else self.only_tokenizer(name)

    def base_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the base model's tokenizer, without loading the weights if the model is on this machine.

        It counts the tokens of questions, because all variants get the same questions.
        """
        from gateau_dagster.models.model_facts import local_facts

        found = local_facts(self.config, self.config.training.model).tokenizer
        return found if found is not None else self.model(MODELS[0]).tokenizer

    def table(self, asset: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return these columns of a whole table."""
        return pl.concat(self.shards(asset, columns))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The values of one model, or a comparison of two.

    table: tables.SCORES, and other columns for MeasuredBenchmark.compare; or the table of a comparison.
    rejected: the questions that could not be measured, with the reasons.
    """

    table: pl.DataFrame
    rejected: Sequence[Reject] = ()

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, float | Reject]]) -> Measured:
        """Return rows of question id, group and value as tables.SCORES; a Reject in place of a value is rejected."""
        found = [*rows]
        values = [row for row in found if not isinstance(row[2], Reject)]
        return cls(
            table=pl.DataFrame(values, schema=tables.schema(tables.SCORES), orient="row"),
            rejected=[replace(value, sample_id=name) for name, _, value in found if isinstance(value, Reject)],
        )


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """A request for one judgment. messages: `role` and `content`. turn: of the question. json_mode: see ServerCall."""

    question_id: str
    turn: int
    messages: Sequence[Mapping[str, str]]
    max_tokens: int
    temperature: float = 0.0
    json_mode: bool = False


_BOUNDS = {"%": (0.0, 100.0), "share found": (0.0, 1.0), "NLL": (0.0, inf), "PPL": (1.0, inf)}
"""Lowest and highest value, by unit."""


@dataclass(frozen=True)
class Benchmark(ABC):
    """A way to measure any number of models under a configuration: one value for each question and model.

    A benchmark extends MeasuredBenchmark, QuestionBenchmark or RatedBenchmark, and has a `name`; a class without one is
    a base of others. Its values are the table `scores/<name>`.

    name: its name in `evaluation.benchmarks`.
    title, description: the report's heading, and the text of the asset's page.
    default: whether it runs if `evaluation.benchmarks` is not given.
    code_version: version of the measuring code; raise it when the code changes a value.
    unit: the unit of a value, such as "%". higher: whether a higher value is better.
    floor, highest: the value of all-wrong answers and, if the unit does not define it, of all-right answers.
    by_group: whether the total is the mean of the groups' means; otherwise it is the mean of all questions.
    groups: the kind of the questions' groups. groupings: other groupings in the report: a heading, and the group of a
        question by its id. Groups that are called "length" are plotted in order.
    by_base: whether questions depend on the base model, for example because its tokenizer measures texts.
    official: instructions for getting the files that an option names, by its key. plain_texts: the keys of options that
        may name text files. digest_name: the name of their digests in `settings`, with {key}; default: the option's
        place.
    options: the section `evaluation.<name>` of the configuration; its annotation is the class that reads it.
    asked: whether `evaluation.benchmarks` or the default names it.
    """

    config: Config
    options: Section
    asked: bool = True

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    unit: ClassVar[str]
    default: ClassVar[bool] = False
    code_version: ClassVar[str] = "1"
    higher: ClassVar[bool] = True
    floor: ClassVar[float] = 0.0
    highest: ClassVar[float | None] = None
    by_group: ClassVar[bool] = True
    groups: ClassVar[str] = "group"
    groupings: ClassVar[Mapping[str, Callable[[str], str]]] = {}
    by_base: ClassVar[bool] = False
    official: ClassVar[Mapping[str, str]] = {}
    plain_texts: ClassVar[Collection[str]] = ()
    digest_name: ClassVar[str] = ""

    @classmethod
    @cache  # every declaration of the pipeline asks for it
    def options_class(cls) -> type[Section]:
        """Return the class of `options`."""
        return get_type_hints(cls)["options"]

    @property
    def version(self) -> str:
        """Return the version of the measuring code; a plug-in's version changes with its file."""
        return full_version(self.code_version, type(self).__module__)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the lowest and the highest possible value; no interval extends beyond them."""
        return _BOUNDS.get(self.unit, (-inf, inf)) if self.highest is None else (self.floor, self.highest)

    def place(self, key: str) -> str:
        """Return the place of an option in the configuration file."""
        return f"evaluation.{self.name}.{key}"

    def reads(self) -> Mapping[str, By]:
        """Return the tables that are read beside the model, and whether a change counts by fingerprint or content."""
        return {}

    def file(self, key: str) -> QuestionFiles:
        """Return the files that an option names."""
        return QuestionFiles(
            config=self.config,
            place=self.place(key),
            path=getattr(self.options, key),
            cure=self.official[key],
            plain_texts=key in self.plain_texts,
            key=self.digest_name.format(key=key),
        )

    def files(self) -> Sequence[QuestionFiles]:
        """Return the files that it reads. Raises GateauError if they cannot be found from the other files' content."""
        return [self.file(key) for key in self.official]

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that affect the values besides options, models, and the prompt's length and template.

        Raises GateauError if a file cannot be read.
        """
        return {each.key or each.place: each.digest() for each in self.files()}

    def stamped_settings(self) -> dict[str, Any]:
        """Return the part of the configuration that affects the values."""
        scoring = {
            f"scoring.{name}": getattr(self.config.scoring, name) for name in ("max_length", "template", "dtype")
        }
        options = {f"evaluation.{self.name}": self.options.model_dump(mode="json")}
        return {**scoring, **rendering_settings(self.config.scoring.template), **options, **self.settings()}

    def check(self) -> None:
        """Raise GateauError, before any model runs, when the configuration does not suffice.

        The message begins with the place in the file.
        """
        for each in self.files():
            each.check()

    def check_known_models(self) -> None:
        """Raise GateauError, before any model runs, when a model's config.json shows that it cannot be measured."""

    def probe(self, materials: Materials) -> None:
        """Raise GateauError, before any model runs, when the files' content shows that it cannot be measured."""

    def remark(self, values: Mapping[str, float]) -> str:
        """Return a note about a model for the report, beside its total, from its values by question; empty for none."""
        return ""

    def cell(self, question_id: str) -> tuple[int, float] | None:
        """Return length and depth (0 to 1) of a needle question, for a heat map; None for other questions."""
        return None


class MeasuredBenchmark(Benchmark):
    """A benchmark that loads a model and generates nothing.

    With `columns` it also compares the checkpoint with its base model, as the table `evaluation/<name>`; the values of
    the columns in `finite` are never null, NaN or infinite.
    """

    columns: ClassVar[tuple[Column, ...]] = ()
    finite: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return the values of a variant. `Materials.model` loads it, and only the tables of `reads` are read."""

    def compare(self, measured: Mapping[str, Measured]) -> Measured:
        """Return the table of a comparison, with `columns`, from the results of `measure` for MODELS."""
        raise lacking_function(self, "compare")

    def section(self, table: pl.DataFrame) -> PageSection:
        """Return the report's section about the table of `compare`."""
        raise lacking_function(self, "section")


class QuestionBenchmark(Benchmark):
    """A benchmark of questions that a model answers.

    asks_as: an earlier benchmark in the list with the same questions and ids; its answers are reused.
    """

    asks_as: ClassVar[str] = ""

    @abstractmethod
    def questions(self, materials: Materials) -> Sequence[Question]:
        """Return the questions, with unique ids. Raises GateauError if they cannot be made."""

    def value(self, question: Question, answer: str) -> float:
        """Return the value of an answer to the question's first turn, unless `grade` finds it in another way."""
        raise lacking_function(self, "value")

    def grade(self, questions: Sequence[Question], answers: pl.DataFrame, judgments: pl.DataFrame | None) -> Measured:
        """Return a value for each question; a question without an answer is rejected.

        answers: tables.ANSWERS. judgments: tables.JUDGMENTS of a RatedBenchmark.
        """
        given = dict(answers.filter(pl.col("turn") == 0).select("question_id", "answer").iter_rows())
        missing = Reject(sample_id="", reason="it was not answered")
        return Measured.of(
            (name, each.group, self.value(each, given[name]) if name in given else missing)
            for each in questions
            for name in [each.question_id]
        )

    def sizes(self) -> Sequence[tuple[float, float]] | None:
        """Return most tokens of prompt and answer per question, for estimates; None if `questions` gives them."""
        return None

    def probe(self, materials: Materials) -> None:
        """Read the questions; override this if making them takes long."""
        self.questions(materials)


def lacking_function(benchmark: Benchmark, function: str) -> GateauError:
    """Return the error for a benchmark without a function that only some benchmarks need."""
    file, name = sys.modules[type(benchmark).__module__].__file__, type(benchmark).__name__
    return GateauError("plugins.incomplete", f"{file}: class {name} lacks {function}: define it there")


def _wrong_measured(given: Any) -> str:
    return "" if isinstance(given, Measured) else f"{shown_value(given)}, not Measured"


def _value_problems(given: Any) -> Iterator[str]:
    """Yield the faults in the values of a model; only the first one is reliable."""
    if problem := _wrong_measured(given):
        yield problem
    if not isinstance(given.table, pl.DataFrame):
        yield f"Measured with the table {shown_value(given.table)}"
    table = given.table
    lacking = [column.name for column in tables.SCORES if column.name not in table.columns]
    if lacking:
        yield f"a table without the column {' and '.join(lacking)}"
    ids, value = table["question_id"], table["value"]
    if ids.dtype != pl.String or ids.null_count():
        yield f"a question_id of type {ids.dtype}, or without a value"
    if not value.dtype.is_numeric():
        yield f"a value of type {value.dtype}, not a number"
    if not ids.is_unique().all():
        yield f"two values for {shown_value(ids.filter(ids.is_duplicated())[0])}"
    odd = ids.filter(value.is_null() | ~value.cast(pl.Float64).is_finite().fill_null(value=False))
    if len(odd):
        yield f"null, NaN or an infinite value for {len(odd):,} questions, the first {shown_value(odd[0])}"


def check_compared(benchmark: MeasuredBenchmark, compared: Measured) -> None:
    """Raise GateauError unless the table of a comparison has the benchmark's columns, with finite numbers."""
    names, table = [column.name for column in benchmark.columns], compared.table
    odd = "" if isinstance(table, pl.DataFrame) else f"the table {shown_value(table)}"
    if not odd and table.columns != names:
        odd = f"the columns {', '.join(table.columns) or 'none'}, not {', '.join(names)}"
    for name in benchmark.finite if not odd else ():
        values = table[name]
        if not values.dtype.is_numeric() or not values.cast(pl.Float64).is_finite().fill_null(value=False).all():
            odd = f"values of {name} that are not finite numbers"
    if odd:
        file = sys.modules[type(benchmark).__module__].__file__
        raise GateauError(
            "plugins.result", f"{file}: benchmark {benchmark.name}: compare() returned {odd}: correct the file"
        )


def _wrong_questions(given: Any) -> str:
    if not isinstance(given, Sequence) or not all(isinstance(each, Question) for each in given):
        return f"{shown_value(given)}, not a list of Question"
    names = [each.question_id for each in given]
    repeated = next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None
    return "" if repeated is None else f"two questions with the id {shown_value(repeated)}"


def _wrong_value(given: Any) -> str:
    is_number = isinstance(given, int | float) and isfinite(given)
    return "" if is_number else f"{shown_value(given)}, not a finite number"


def _wrong_reads(given: Any) -> str:
    ways = get_args(By)
    right = isinstance(given, Mapping) and all(isinstance(name, str) and by in ways for name, by in given.items())
    return "" if right else f"{shown_value(given)}, not tables with {' or '.join(ways)}"


RETURNED: Returned = {
    "reads": _wrong_reads,
    "measure": lambda given: next(_value_problems(given), ""),
    "grade": lambda given: next(_value_problems(given), ""),
    "compare": _wrong_measured,
    "questions": _wrong_questions,
    "value": _wrong_value,
    "section": lambda given: "" if isinstance(given, PageSection) else f"{shown_value(given)}, not PageSection",
    "remark": lambda given: "" if isinstance(given, str) else f"{shown_value(given)}, not a text",
}
"""The checks of the return values of a plug-in's benchmark."""


# The report's part as plain data, which the page's template formats.


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A plot: its name in Dagster, an alternative text, and how to read it."""

    name: str
    draw: Callable[[], Figure]
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table of some columns of `frame`; collapsed under the heading `folded`, if that is given.

    columns: headings by column name. shares: the columns with numbers in 0..1, which are shown as percentages.
    """

    frame: pl.DataFrame
    columns: Mapping[str, str]
    shares: Collection[str] = ()
    folded: str = ""

    @property
    def texts(self) -> list[str]:
        """Return the columns that hold no numbers."""
        return self.frame.select(pl.col(pl.String)).columns


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """The content below the benchmark's title: sentences, then figures, then tables.

    headline: for the top of the report. chart: for the asset's page, where figures open with a click.
    """

    sentences: Sequence[str]
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    headline: str = ""
    chart: PageChart | None = None
