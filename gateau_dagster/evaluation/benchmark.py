"""What a benchmark is: the tables it reads, what it measures of the base model and the checkpoint, what it shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.evaluation.page import PageSection
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.stamp import By
from gateau_dagster.tables import Column

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.models.loading import LoadedModel

MODELS = ("base", "checkpoint")
"""The model that was trained from, and the one that came out."""


@dataclass(frozen=True, kw_only=True)
class Materials:
    """What a benchmark is given; tables are read and models loaded when they are asked for.

    reads: the tables that may be read, as ChosenBenchmark.reads says.
    shards: these columns of a table, shard by shard; a table over the whole data set is one frame.
    samples: the samples with these ids, in order of id.
    model: one of MODELS. One at a time stays loaded, unless the caller holds on to the other.
    """

    config: Config
    reads: Collection[str]
    shards: Callable[[str, Sequence[str]], Iterator[pl.DataFrame]]
    samples: Callable[[Collection[str]], Sequence[Sample]]
    model: Callable[[str], LoadedModel]
    progress: Progress = silent

    def table(self, asset: str, columns: Sequence[str]) -> pl.DataFrame:
        """These columns of a whole table."""
        return pl.concat(self.shards(asset, columns))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`table`: Benchmark.columns. `rejected`: what could not be measured, and why."""

    table: pl.DataFrame
    rejected: Sequence[Reject] = ()


def no_settings(config: Config, options: Any) -> Mapping[str, Any]:
    """Of a benchmark whose result depends on its options and the models alone."""
    del config, options
    return {}


def no_check(config: Config, options: Any) -> None:
    """Of a benchmark that every configuration can serve."""
    del config, options


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A comparison of the checkpoint with its base model, as the asset `evaluation/<name>`.

    title, description: the report's heading, and the asset's page.
    options: the section `evaluation.<name>` of the configuration.
    columns: of the table; the values of those in `finite` are never null, NaN or infinite.
    reads: the tables that `run` reads beside the checkpoint, and how each counts: by its fingerprint or its content.
        `made`: what is computed for the selection anyway, so that reading it costs nothing.
    run: measures; reads nothing that `reads` does not name.
    section: from the table to what the report shows.
    settings: what else of the configuration changes the table, beside the options, the prompt's length and template and
        the models' type.
    check: raises GateauError, before any model runs, when the configuration cannot serve it; the message begins with
        the place in the file.
    default: whether it runs when `evaluation.benchmarks` is not given.
    """

    name: str
    title: str
    description: str
    columns: tuple[Column, ...]
    reads: Callable[[Config, Any, Collection[str]], Mapping[str, By]]
    run: Callable[[Materials, Any], Outcome]
    section: Callable[[pl.DataFrame], PageSection]
    options: type[Section] = Section
    finite: tuple[str, ...] = ()
    settings: Callable[[Config, Any], Mapping[str, Any]] = no_settings
    check: Callable[[Config, Any], None] = no_check
    default: bool = False
    code_version: str = "1"
