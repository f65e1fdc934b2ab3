"""Registry of all benchmarks by name: every module of this package that ends with BENCHMARK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from pydantic import create_model

from gateau_dagster import evaluation
from gateau_dagster.config.base import Section, validated
from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.evaluation.benchmark import Benchmark, Comparison, Materials, Outcome, Scored
from gateau_dagster.evaluation.document_split import Reserving
from gateau_dagster.evaluation.page import PageSection
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.registry import registered
from gateau_dagster.storage.stamp import By

if TYPE_CHECKING:
    from gateau_dagster.config import Config


FAMILY = "evaluation"


@dataclass(frozen=True, kw_only=True)
class ChosenBenchmark:
    """A benchmark with its configured options; `asked`: whether `evaluation.benchmarks` names it."""

    benchmark: Benchmark
    options: Section
    asked: bool

    @property
    def name(self) -> str:
        """Return the name, as in `evaluation.benchmarks`."""
        return self.benchmark.name

    @property
    def asset(self) -> str:
        """Return the asset that holds its comparison."""
        return asset_of(self.name)

    @property
    def comparison(self) -> Comparison:
        """Return the comparison of a benchmark in `compared_benchmarks`."""
        assert self.benchmark.comparison is not None
        return self.benchmark.comparison

    @property
    def scored(self) -> Scored:
        """Return the scoring of a benchmark in `scored_benchmarks`."""
        assert self.benchmark.scored is not None
        return self.benchmark.scored

    def reads(self, config: Config) -> dict[str, By]:
        """Return Comparison.reads and the checkpoint, by content: an equal checkpoint is not measured again."""
        return {**self.comparison.reads(config, self.options), "checkpoint": "content"}

    def settings(self, config: Config) -> dict[str, Any]:
        """Return the part of the configuration that changes the table."""
        scoring = {f"scoring.{name}": getattr(config.scoring, name) for name in ("max_length", "template", "dtype")}
        options = {f"evaluation.{self.name}": self.options.model_dump(mode="json")}
        dated = rendering_settings(config.scoring.template)
        return {**scoring, **dated, **options, **self.benchmark.settings(config, self.options)}

    def judge_settings(self, config: Config) -> dict[str, Any]:
        """Return the judge's settings that change its judgments; its address and prices do not."""
        judge = config.evaluation.judge
        if judge is None:
            return {}
        named = {"model": judge.model, "repeats": judge.repeats, **judge.changed_sampling}
        return {f"evaluation.judge.{name}": value for name, value in named.items()}

    def run(self, materials: Materials) -> Outcome:
        """Run the comparison with the options."""
        return self.comparison.run(materials, self.options)

    def section(self, table: pl.DataFrame) -> PageSection:
        """Return the report's section of the comparison."""
        return self.comparison.section(table)


def asset_of(name: str) -> str:
    """Return the asset that holds a benchmark's table."""
    return f"{FAMILY}/{name}"


@cache
def all_benchmarks() -> Mapping[str, Benchmark]:
    """Return every benchmark of the project by name, in order of the modules' names."""
    return {benchmark.name: benchmark for benchmark in registered(evaluation, Benchmark)}


def chosen_benchmarks(config: Config) -> dict[str, ChosenBenchmark]:
    """Return the benchmarks that run, by name; none without training or with `evaluation.enabled: false`.

    Raises:
        GateauError: a name or an option does not exist, or the configuration lacks what a benchmark needs.
    """
    found = {name: each for name, each in configured_benchmarks(config).items() if each.asked}
    if not (config.training.enabled and config.evaluation.enabled):
        return {}
    for each in found.values():
        each.benchmark.check(config, each.options)
    return found


def compared_benchmarks(config: Config) -> dict[str, ChosenBenchmark]:
    """Return the `chosen_benchmarks` that compare the checkpoint with its base model; raises as that does."""
    return {name: each for name, each in chosen_benchmarks(config).items() if each.benchmark.comparison is not None}


def scored_benchmarks(config: Config) -> dict[str, ChosenBenchmark]:
    """Return the `chosen_benchmarks` that give every variant a value for each question; raises as that does.

    One that also has a comparison is included only where `variants` names more models, or for the gate.
    """
    found = {name: each for name, each in chosen_benchmarks(config).items() if each.benchmark.scored is not None}
    gate = config.evaluation.gate
    gated = "" if gate is None else gate.benchmark
    return {
        name: each
        for name, each in found.items()
        if config.variants or each.benchmark.comparison is None or name == gated
    }


def reserving(config: Config) -> Reserving | None:
    """Return how samples are reserved for the benchmarks that run; None where none needs it.

    Of several benchmarks' options, the largest share and the smallest similarity satisfy all: a larger share reserves
    all that a smaller one does.
    """
    found = [each.options for each in chosen_benchmarks(config).values() if isinstance(each.options, Reserving)]
    if not found:
        return None
    share, similarity = max(each.share for each in found), min(each.similarity for each in found)
    return Reserving(share=share, similarity=similarity)


def document_similarity(config: Config) -> float:
    """Return the lowest similarity of two contexts of one document; reservation and selection use the same value.

    Where no benchmark reserves anything, it comes from the options that the configuration gives or leaves at their
    defaults.
    """
    found = reserving(config)
    if found is not None:
        return found.similarity
    options = [each.options for each in configured_benchmarks(config).values()]
    return min(each.similarity for each in options if isinstance(each, Reserving))


def configured_benchmarks(config: Config) -> dict[str, ChosenBenchmark]:
    """Return the benchmarks that run by default or that `evaluation` names, whether they run or not.

    Raises:
        SectionError: a name or an option does not exist.
    """
    known, given = all_benchmarks(), config.evaluation.sections
    asked = _asked(config)
    wanted = [name for name, each in known.items() if each.default or name in asked or name in given]
    section = _section(tuple((name, each.options, name in wanted) for name, each in known.items()))
    own = {"enabled": config.evaluation.enabled, "benchmarks": asked}
    found = validated(FAMILY, section, {name: {} for name in wanted} | given | own)
    return {
        name: ChosenBenchmark(benchmark=known[name], options=getattr(found, name), asked=name in asked)
        for name in wanted
    }


@cache
def _section(known: tuple[tuple[str, type[Section], bool], ...]) -> type[Section]:
    """Return the model of `evaluation`, from each benchmark's name, options class, and whether it is wanted."""
    names = tuple(name for name, _, _ in known)
    keys: dict[str, Any] = {
        "enabled": (bool, ...),
        "benchmarks": (tuple[Literal[names], ...], ...),  # pyright: ignore[reportInvalidTypeForm]
        **{name: (options, ... if wanted else None) for name, options, wanted in known},
    }
    return create_model("Evaluation", __base__=Section, **keys)


def check_benchmarks(config: Config) -> None:
    """Raise GateauError as `chosen_benchmarks` does."""
    chosen_benchmarks(config)


def with_benchmarks(config: Config) -> Config:
    """Return the configuration with benchmark names and options filled in; raises as `configured_benchmarks`."""
    options = {name: each.options.model_dump(mode="json") for name, each in configured_benchmarks(config).items()}
    given = EvaluationConfig.model_validate({"benchmarks": _asked(config)} | options)
    own = {name: getattr(config.evaluation, name) for name in EvaluationConfig.model_fields if name != "benchmarks"}
    return config.model_copy(update={"evaluation": given.model_copy(update=own)})


def _asked(config: Config) -> tuple[str, ...]:
    """Return `evaluation.benchmarks`, or the default."""
    if config.evaluation.benchmarks is not None:
        return config.evaluation.benchmarks
    return tuple(name for name, benchmark in all_benchmarks().items() if benchmark.default)
