"""Define a selection method: the tables it reads, and a score for every sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from gateau_dagster.config.base import Section
from gateau_dagster.config.models import Task
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.spans import SpanMap, no_span_map
from gateau_dagster.readable import nearest_name
from gateau_dagster.scoring.sample_table import SampleTable

if TYPE_CHECKING:
    from gateau_dagster.config import Config


Tables: TypeAlias = Mapping[str, pl.DataFrame]
Reads: TypeAlias = Mapping[str, Sequence[str]]


class NoOptions(Section):
    """The options of a method without options."""


def no_tables(config: Config, options: Any) -> Sequence[SampleTable]:
    """Return no tables, for a method that needs no model of its own."""
    del config, options
    return ()


def no_check(config: Config, options: Any) -> None:
    """Accept any configuration."""
    del config, options


def no_data_check(config: Config, options: Any, accepted: pl.DataFrame) -> None:
    """Accept any data."""
    del config, options, accepted


def no_warnings(config: Config, options: Any, accepted: pl.DataFrame) -> list[str]:
    """Return no warnings, for a method that scores any data."""
    del config, options, accepted
    return []


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to rank samples, as the asset `method_scores/<name>`.

    title: one sentence for a reader who knows no paper: what a high score means. source: paper and equation.
    per_sample: a sample's score depends on its own rows only, so that the asset has one partition per shard; otherwise
        the score is computed over the whole data set.
    options: the section `selection.options.<name>` of the configuration.
    reads: the columns that are read from each table.
    score: maps these tables, of one shard or of all, to `sample_id` and `score` (f64, higher is chosen first, null
        if the method cannot score the sample).
    tables: the tables that a model must compute for it, besides `perplexity/<model>` and `cam`.
    check: raises GateauError, before any model runs, if the configuration lacks what the method needs.
    check_known_models: raises GateauError, before any model runs, if a model's config.json shows that it cannot serve
        the method. A config.json that is neither on this machine nor on the hub is not checked.
    check_data: raises GateauError, before any model runs, if the data cannot serve the method. It receives the index
        of the usable samples, with their `source` and `characters`.
    warnings: sentences for `gateau validate` and `gateau plan`: which samples the method leaves without a score, and
        which settings make it ineffective.
    span_map: where the report reads what each span of a sample adds to its score; None if spans have no such part.
    """

    name: str
    title: str
    source: str
    per_sample: bool
    reads: Callable[[Config, Any], Reads]
    score: Callable[[Tables, Config, Any], pl.DataFrame]
    options: type[Section] = NoOptions
    tables: Callable[[Config, Any], Sequence[SampleTable]] = no_tables
    check: Callable[[Config, Any], None] = no_check
    check_known_models: Callable[[Config, Any], None] = no_check
    check_data: Callable[[Config, Any, pl.DataFrame], None] = no_data_check
    warnings: Callable[[Config, Any, pl.DataFrame], list[str]] = no_warnings
    span_map: Callable[[Config, Any], SpanMap | None] = no_span_map
    code_version: str = "1"


def check_model(config: Config, model: str, task: Task, *, place: str) -> None:
    """Raise GateauError unless `model`, a name at `place` of the configuration, has this task."""
    if model not in config.models:
        meant = nearest_name(model, config.models)
        raise GateauError(f"{place}: {model!r} is none of models: add it there, with task {task}; {meant}")
    if config.models[model].task != task:
        raise GateauError(f"{place}: models.{model} has task {config.models[model].task}, but {task} is needed")


def longest_prompt(config: Config, model: str, *, window: int | None) -> tuple[int, str]:
    """Return the tokens of the longest prompt that a causal model is shown, and what limits them, as text.

    window: of the model, which counts under `context: window`; None: it is unknown.
    """
    longest = config.scoring.max_length
    if config.models[model].context == "window" and window is not None and window < longest:
        return window, f"the window of models.{model}, which has context: window,"
    return longest, "scoring.max_length"
