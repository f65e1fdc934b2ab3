"""Read the questions of benchmarks without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import polars as pl

from gateau_dagster.features.evaluation import ANSWERS, SCORES
from gateau_dagster.features.evaluation.benchmark import Materials, Question, QuestionBenchmark
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State


class _NotKnownYetError(Exception):
    """A benchmark's questions depend on something that only exists after a run."""


def known_questions(state: State, chosen: QuestionBenchmark) -> Sequence[Question] | None:
    """Return a benchmark's questions; None if they depend on missing tables or on a model.

    Raises:
        GateauError: the questions cannot be read.
    """
    try:
        return chosen.questions(_without_models(state, f"{ANSWERS}/{chosen.name}"))
    except _NotKnownYetError:
        return None


def check_questions(state: State, plan: Plan | None = None) -> None:
    """Check that the files of benchmarks can be read, as far as possible without running anything.

    plan: benchmarks that are not on it are skipped; None: check all.

    Raises:
        GateauError: a file cannot be read.
    """
    for name, chosen in scored_benchmarks(state.config).items():
        asset = f"{ANSWERS if isinstance(chosen, QuestionBenchmark) else SCORES}/{name}"
        if plan is None or plan.of(asset) is not None:
            with suppress(_NotKnownYetError):
                chosen.probe(_without_models(state, asset))


def _without_models(state: State, asset: str) -> Materials:
    """Return the materials that a benchmark's questions may read without running anything."""

    def shards(table: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        for part in state.pipeline.partitions(table):
            if state.stamp(table, part) is None:
                raise _NotKnownYetError
            yield state.store.read(table, part, [*columns])

    def nothing(_: Any) -> Any:
        raise _NotKnownYetError

    return Materials(config=state.config, reads=state.asset(asset).reads, shards=shards, samples=nothing, model=nothing)
