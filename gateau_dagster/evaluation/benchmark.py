"""Definition of a benchmark: the tables that it reads, what it measures, and what the report shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.page import PageSection
from gateau_dagster.evaluation.scored import Scored
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from gateau_dagster.config import Config


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
