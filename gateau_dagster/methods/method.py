"""Define a selection method: the tables it reads, and a score for every sample."""

# Why a method is data and not a program: it names the columns that it reads, and scores tables. The planner makes the
# tables, keeps their rows, runs the models and divides the work. So a new method needs no code for devices, stores or
# restarts, and methods that read the same table share its cost.
#
# When that is too narrow: a method that needs another pass of a model declares a table (`tables`), whose function gets
# the model.

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_type_hints

import polars as pl
from pydantic import Field

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.config.models import Task
from gateau_dagster.data.sources import SourceFile, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name, plural
from gateau_dagster.registry import Returned, full_version, plugin_code, shown_value
from gateau_dagster.scoring.sample_table import Row, SampleTable

Tables: TypeAlias = Mapping[str, pl.DataFrame]
Reads: TypeAlias = Mapping[str, Sequence[str]]

FAMILY = "method_scores"


class NoOptions(Section):
    """The options of a method without options."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The amounts that the spans of a sample add to its score.

    of: the text that was cut into spans. 'prompt' is the whole scoring prompt with the response and without the model's
    opening. 'prompt without bos' is the same without its bos, 'context' the truncated context. tokens: length of
    that text. first: the token at which the first span begins. length: tokens of a span; the last may be shorter.
    added: one value per span, in order; their sum is the score, or the term of it that `SpanMap.adds` names.
    """

    of: Literal["prompt", "prompt without bos", "context"]
    tokens: int
    first: int
    length: int
    added: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class SpanMap:
    """The place from which a method's spans are read.

    table: the table whose rows are read. model: key of `models`, whose tokens the spans count. adds: the name of the
    sum, for a reader. spans: maps a row to its spans; None if the method cannot score the sample.
    """

    table: str
    model: str
    adds: str
    spans: Callable[[Row], Spans | None]


@dataclass(frozen=True)
class Method(ABC):
    """A way to rank samples under a configuration, as the asset `method_scores/<name>`.

    A subclass is a method if it has a `name`; without one it is a base of others.

    name: as in `selection.method`. title: one sentence for a reader who knows no paper: what a high score means.
    source: paper and equation.
    per_sample: a sample's score depends on its own rows only, so that the asset has one partition per shard; otherwise
        the score is computed over the whole data set.
    code_version: of the code that scores; raise it when it changes a score.
    task: the task of the model that `options.model` names, if the method has this option.
    options: the section `selection.options.<name>` of the configuration; its annotation is the class that reads it.
    """

    config: Config
    options: Section

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    per_sample: ClassVar[bool]
    code_version: ClassVar[str] = "1"
    task: ClassVar[Task] = "causal"
    options_class: ClassVar[type[Section]] = NoOptions

    def __init_subclass__(cls) -> None:
        """Take the class of the options from the annotation of `options`."""
        super().__init_subclass__()
        annotated = get_type_hints(cls)["options"]
        if not issubclass(annotated, Section):
            raise TypeError(f"{cls.__name__}.options: {annotated.__name__} is no subclass of Section")
        cls.options_class = NoOptions if annotated is Section else annotated

    @property
    def asset(self) -> str:
        """Return the name of the asset that holds the scores."""
        return f"{FAMILY}/{self.name}"

    @property
    def version(self) -> str:
        """Return the version of the code that scores; that of a plug-in changes with its file."""
        return full_version(self.code_version, type(self).__module__)

    @property
    def place(self) -> str:
        """Return the place of the options in the configuration."""
        return f"selection.options.{self.name}"

    @abstractmethod
    def reads(self) -> Reads:
        """Return the columns that are read from each table; these tables are made first."""

    @abstractmethod
    def score(self, tables: Tables) -> pl.DataFrame:
        """Return `sample_id` and `score` f64 from the tables of `reads`, of one shard or of all.

        A higher score is chosen first; null if the method cannot score the sample.
        """

    def paths(self) -> Sequence[str]:
        """Return the paths of files that it reads besides tables, as the configuration names them.

        The content of the files is part of the fingerprint, and the lineage shows them.
        """
        return ()

    def files(self) -> list[SourceFile]:
        """Return the files of `paths`.

        Raises:
            GateauError: as `sources.resolve_files`.
        """
        try:
            return resolve_files(self.paths(), self.config.folder)
        except GateauError as error:
            raise error.reworded(f"{self.place}: {error}") from error

    def tables(self) -> Sequence[SampleTable]:
        """Return the tables that a model must compute for it, besides `perplexity/<model>` and `cam`."""
        return ()

    def check(self) -> None:
        """Raise GateauError, before any model runs, if the configuration lacks what the method needs."""
        model = getattr(self.options, "model", None)
        if model is not None:
            check_model(self.config, model, self.task, place=f"{self.place}.model")

    def check_known_models(self) -> None:
        """Raise GateauError, before any model runs, if a model's config.json shows that it cannot serve the method.

        A config.json that is neither on this machine nor on the hub is not checked.
        """

    def check_data(self, accepted: pl.DataFrame) -> None:
        """Raise GateauError, before any model runs, if the data cannot serve the method.

        `accepted`: the index of the usable samples, with their `source` and `characters`.
        """

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        """Return sentences for `gateau validate` and `gateau plan`: which samples the method leaves without a score,
        and which settings make it ineffective. `accepted`: as for `check_data`.
        """
        return []

    def span_map(self) -> SpanMap | None:
        """Return where the report reads what each span of a sample adds to its score; None if spans have no such
        part.
        """
        return None

    def scores(self, found: Tables) -> pl.DataFrame:
        """Return the scores sorted by id, with the columns of tables.METHOD_SCORES.

        Raises:
            GateauError: `score` returns something else, or not one row for each sample that is in all of its tables.
        """
        # Checked, since plug-ins run here: a frame that lacks a sample, or has it twice, would otherwise be a wrong
        # ranking without an error.
        given: Any = self.score(found)
        file = str(sys.modules[type(self).__module__].__file__)
        place = f"method {self.name}: score()"
        if isinstance(given, pl.LazyFrame):
            with plugin_code(place, file):
                given = given.collect()
        if problem := next(_score_problems(given, found), ""):
            raise GateauError(
                "plugins.result", f"{file}: {place} returned {problem}. {_SCORES_CURE}. No table is replaced"
            )
        return given.select(pl.col(column.name).cast(column.dtype) for column in tables.METHOD_SCORES).sort("sample_id")


_SCORES_CURE = "Return a frame with the columns sample_id and score, one row per sample, and null for no score"
_MOST_IDS = 3


def _score_problems(given: Any, found: Tables) -> Iterator[str]:
    """Yield the faults of a frame as the scores of the samples in these tables; only the first one is reliable."""
    if not isinstance(given, pl.DataFrame):
        yield shown_value(given)
    lacking = [name for name in ("sample_id", "score") if name not in given.columns]
    if lacking:
        yield f"a frame without the column {' and '.join(lacking)}, only with {', '.join(given.columns) or 'none'}"
    ids, score = given["sample_id"], given["score"]
    if ids.dtype not in (pl.String, pl.Categorical, pl.Enum) and given.height:
        yield f"a sample_id of type {ids.dtype}, not text"
    if not (score.dtype.is_numeric() or score.dtype in (pl.Boolean, pl.Null)):
        yield f"a score of type {score.dtype}, not a number"
    ids, score = ids.cast(pl.String), score.cast(pl.Float64)
    if count := ids.null_count():
        yield f"{plural(count, 'row')} without a sample_id"
    if len(twice := ids.filter(ids.is_duplicated()).unique()):
        yield f"{plural(len(twice), 'sample')} more than once: {_shown_ids(twice)}"
    if len(odd := ids.filter(score.is_nan() | score.is_infinite())):
        yield f"NaN or an infinite score for {plural(len(odd), 'sample')}: {_shown_ids(odd)}"
    known = [frame["sample_id"].cast(pl.String) for frame in found.values() if "sample_id" in frame.columns]
    if not known:
        return
    if len(unknown := ids.filter(~ids.is_in(pl.concat(known).unique().implode()))):
        yield f"{plural(len(unknown), 'sample_id')} that no table has: {_shown_ids(unknown)}"
    wanted = known[0]
    for other in known[1:]:
        wanted = wanted.filter(wanted.is_in(other.implode()))
    if len(missing := wanted.filter(~wanted.is_in(ids.implode()))):
        yield f"no row for {len(missing):,} of {plural(len(wanted), 'sample')}: {_shown_ids(missing)}"


def _shown_ids(ids: pl.Series) -> str:
    shown = ", ".join(shown_value(name).partition(" ")[2] for name in ids.sort().head(_MOST_IDS))
    return shown if len(ids) <= _MOST_IDS else f"{shown}, …"


def _wrong_reads(given: Any) -> str:
    if not isinstance(given, Mapping):
        return shown_value(given)
    for asset, columns in given.items():
        if not isinstance(asset, str):
            return f"a table named {shown_value(asset)}"
        if isinstance(columns, str) or not _lists_of(str)(columns):
            return f"{shown_value(columns)} as the columns of {asset}, not a list of texts"
    return ""


def _lists_of(kind: type) -> Callable[[Any], bool]:
    return lambda given: (
        isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(each, kind) for each in given)
    )


def _wrong_list(kind: type) -> Callable[[Any], str]:
    return lambda given: "" if _lists_of(kind)(given) else f"{shown_value(given)}, not a list of {kind.__name__}"


RETURNED: Returned = {
    "reads": _wrong_reads,
    "paths": _wrong_list(str),
    "tables": _wrong_list(SampleTable),
    "warnings": _wrong_list(str),
    "span_map": lambda given: "" if given is None or isinstance(given, SpanMap) else shown_value(given),
}
"""The checks of what the functions of a plug-in's method return."""


class PromptOptions(Section):
    """The options of a PromptMethod."""

    model: str = Field(default="long", description="Key of `models`: the causal model that reads the prompts.")


class PromptMethod(Method):
    """A method that scores a prompt only if the model is shown enough of its tokens."""

    options: PromptOptions

    @abstractmethod
    def needed(self) -> tuple[int, str, str]:
        """Return the fewest tokens that can be scored, what needs them, and which options lower them, as text."""

    def check(self) -> None:
        super().check()
        self._check_length(self.config.models[self.options.model].window)

    def check_known_models(self) -> None:
        from gateau_dagster.models.model_facts import shown_window

        self._check_length(shown_window(self.config, self.options.model))

    def _check_length(self, window: int | None) -> None:
        fewest, what, lowered = self.needed()
        longest, limit = longest_prompt(self.config, self.options.model, window=window)
        if longest < fewest:
            raise GateauError(
                "methods.no_sample_fits",
                f"{self.place}: no sample could be scored: {what}, and {limit} is {longest}: lower {lowered}",
            )


def check_model(config: Config, model: str, task: Task, *, place: str) -> None:
    """Raise GateauError unless `model`, a name at `place` of the configuration, has this task."""
    if model not in config.models:
        meant = nearest_name(model, config.models)
        raise GateauError("models.missing", f"{place}: `models` has no {model!r}: add it with task {task}; {meant}")
    if config.models[model].task != task:
        raise GateauError(
            "models.task", f"{place}: models.{model} has task {config.models[model].task}, but {task} is needed"
        )


def longest_prompt(config: Config, model: str, *, window: int | None) -> tuple[int, str]:
    """Return the tokens of the longest prompt that a causal model is shown, and what limits them, as text.

    window: of the model, which counts under `context: window`; None: it is unknown.
    """
    longest = config.scoring.max_length
    if config.models[model].context == "window" and window is not None and window < longest:
        return window, f"the window of models.{model}, which has context: window,"
    return longest, "scoring.max_length"
