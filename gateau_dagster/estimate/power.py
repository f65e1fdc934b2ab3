"""Estimate, before an experiment runs, the smallest difference between two models that it is likely to show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import polars as pl

from gateau_dagster.estimate.questions import known_questions
from gateau_dagster.evaluation.benchmark import Benchmark, QuestionBenchmark
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.evaluation_assets import SCORES
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural

EXPERIMENT = "experiment"
DEVIATIONS = 1.96 + 0.84
"""Standard errors of a difference whose 95 % interval excludes 0 in 80 % of experiments."""
DIFFERING = 0.25
"""Share of the questions that two models are assumed to answer differently, one right and one wrong."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Describe what a benchmark can show of two models that answer the same questions.

    questions: None if the number is unknown.
    difference: in the benchmark's unit; None if it is unknown.
    grounds: the source of the spread, or why it is not known.
    """

    benchmark: str
    questions: int | None
    difference: float | None
    unit: str
    grounds: str


def experiment_power(state: State, plan: Plan) -> list[Power]:
    """Return the power of each benchmark of a planned experiment with variants; nothing without one.

    How much another seed of the training changes is not part of it.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    if state.config.variants is None or plan.of(EXPERIMENT) is None:
        return []
    return [_power(state, benchmark) for benchmark in scored_benchmarks(state.config).values()]


def detectable(questions: int, deviation: float) -> float:
    """Return the difference that is told apart in 80 % of experiments.

    deviation: standard deviation over questions of the difference between two models' values.
    """
    return DEVIATIONS * deviation / math.sqrt(questions)


def _power(state: State, benchmark: Benchmark) -> Power:
    tables = [*_scores(state, benchmark.name)]
    deviations = [*_deviations(tables)]
    questions = tables[0].height if tables else _questions(state, benchmark)
    if deviations:
        deviation, grounds = median(deviations), f"the answers of {plural(len(tables), 'model')} of this store"
    elif benchmark.unit == "%":
        deviation = 100 * math.sqrt(DIFFERING)
        grounds = f"two models that answer {DIFFERING:.0%} of the questions differently"
    else:
        deviation, grounds = None, "not known before two models have answered"
    difference = None if deviation is None or not questions else detectable(questions, deviation)
    return Power(
        benchmark=benchmark.name, questions=questions, difference=difference, unit=benchmark.unit, grounds=grounds
    )


def _questions(state: State, benchmark: Benchmark) -> int | None:
    if not isinstance(benchmark, QuestionBenchmark):
        return None
    sizes = benchmark.sizes()  # generated questions are costly
    questions = known_questions(state, benchmark) if sizes is None else sizes
    return None if questions is None else len(questions)


def _scores(state: State, benchmark: str) -> Iterator[pl.DataFrame]:
    asset = f"{SCORES}/{benchmark}"
    for (_, variant), stamp in state.store.stamps((asset, name) for name in state.config.variant_set).items():
        if stamp is not None:
            table = state.store.read(asset, variant, ["question_id", "value"])
            if table.height:
                yield table


def _deviations(tables: list[pl.DataFrame]) -> Iterator[float]:
    """Yield the deviation of the difference of each two models that answered the same questions differently."""
    for first, second in combinations(tables, 2):
        both = first.join(second, on="question_id", suffix="_other")
        deviation = (both["value"] - both["value_other"]).std()
        if isinstance(deviation, float) and math.isfinite(deviation) and deviation > 0:
            yield deviation
