"""Estimate the smallest difference between two models that the benchmarks of an experiment can show."""

# For whom: who plans an experiment sees, before days of training, whether it can show the difference that is hoped for.
# It uses the intervals of the comparison itself, so plan and result agree.
#
# What it rests on: the differences between models of this store that answered the same questions. Before two have,
# there is an assumption for answers that are right or wrong, and no estimate for others.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

import numpy as np
import polars as pl

from gateau_dagster.features.evaluation import SCORES
from gateau_dagster.features.evaluation.benchmark import Benchmark, QuestionBenchmark
from gateau_dagster.features.evaluation.questions import known_questions
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.compare import TAIL, VarianceSource, half_width, seed_spread
from gateau_dagster.features.evaluation.statistics.experiment import answered, lines_of
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural

EXPERIMENT = "experiment"
BEYOND = 0.84
"""Standard errors from the end of an interval that excludes 0 in 80 % of experiments."""
DIFFERING = 0.25
"""Share of the questions that two models are assumed to answer differently, one right and one wrong."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """The smallest difference that a benchmark can show between two models that answer the same questions.

    questions: number of questions; None if it is unknown.
    difference: in the benchmark's unit; None if it is unknown.
    grounds: the source of the spread, or the reason why it is not known.
    seeds: whether the spread between training runs with different seeds is included.
    """

    benchmark: str
    questions: int | None
    difference: float | None
    unit: str
    grounds: str
    seeds: bool = False


def experiment_power(state: State, plan: Plan) -> list[Power]:
    """Return the power of each benchmark of a planned experiment with variants; empty without such an experiment.

    It includes the spread between training seeds once models of several seeds have answered.

    Raises:
        GateauError: a benchmark's questions cannot be read.
    """
    if state.config.variants is None or plan.of(EXPERIMENT) is None:
        return []
    return [_power(state, benchmark) for benchmark in scored_benchmarks(state.config).values()]


def detectable(questions: int, deviation: float, between_seeds: VarianceSource | None = None) -> float:
    """Return the difference that 80 % of experiments detect, in the unit of `deviation`.

    Args:
        questions: number of questions.
        deviation: standard deviation over questions of the difference between two models' values.
        between_seeds: the seeds' part of the difference's variance, one row.
    """
    of_questions = VarianceSource(variance=np.array([deviation**2 / questions]), freedom=np.array([math.inf]))
    parts = [of_questions] if between_seeds is None else [of_questions, between_seeds]
    error = math.sqrt(sum(part.variance.item() for part in parts))
    return half_width(parts, TAIL).item() + BEYOND * error


def _power(state: State, benchmark: Benchmark) -> Power:
    made = state.read_made(f"{SCORES}/{benchmark.name}", ["question_id", "group", "value"])
    scores = {variant: table for variant, table in made.items() if table.height}
    tables = [*scores.values()]
    deviations, between_seeds = [*_deviations(tables)], _between_seeds(state, benchmark, scores)
    questions = tables[0].height if tables else _questions(state, benchmark)
    if deviations:
        deviation, grounds = median(deviations), f"the answers of {plural(len(tables), 'model')} of this store"
        grounds += "" if between_seeds is None else ", several seeds among them"
    elif benchmark.unit == "%":
        deviation = 100 * math.sqrt(DIFFERING)
        grounds = f"two models that answer {DIFFERING:.0%} of the questions differently"
    else:
        deviation, grounds = None, "not known before two models have answered"
    difference = None if deviation is None or not questions else detectable(questions, deviation, between_seeds)
    return Power(
        benchmark=benchmark.name,
        questions=questions,
        difference=difference,
        unit=benchmark.unit,
        grounds=grounds,
        seeds=between_seeds is not None,
    )


def _questions(state: State, benchmark: Benchmark) -> int | None:
    if not isinstance(benchmark, QuestionBenchmark):
        return None
    sizes = benchmark.sizes()  # generated questions are costly
    questions = known_questions(state, benchmark) if sizes is None else sizes
    return None if questions is None else len(questions)


def _between_seeds(state: State, benchmark: Benchmark, scores: Mapping[str, pl.DataFrame]) -> VarianceSource | None:
    """Return the seeds' part of the variance of two models' difference; None if it is not known yet."""
    planned = [line for line in lines_of(state.config) if len(line.variants) > 1]
    answering = [replace(line, variants=tuple(name for name in line.variants if name in scores)) for line in planned]
    lines = [line for line in answering if len(line.variants) > 1]
    asked = [{*scores[name]["question_id"]} for line in lines for name in line.variants]
    if not asked or not set.intersection(*asked):  # such as tables of earlier questions
        return None
    found = answered(benchmark.name, lines, scores)
    spread = seed_spread([model.values for model in found.models], found.total(by_group=benchmark.by_group))
    assert spread is not None, "each line has several seeds"
    seeds = min(len(line.variants) for line in planned)
    freedom = float(sum(len(line.variants) - 1 for line in planned))  # of the experiment when it is complete
    # Twice, since the difference is of two models, each with this variance.
    return VarianceSource(variance=2 * spread.variance / seeds, freedom=np.array([freedom]))


def _deviations(tables: list[pl.DataFrame]) -> Iterator[float]:
    """Yield the deviation of the difference for each pair of models that answered the same questions differently."""
    for first, second in combinations(tables, 2):
        both = first.join(second, on="question_id", suffix="_other")
        deviation = (both["value"] - both["value_other"]).std()
        if isinstance(deviation, float) and math.isfinite(deviation) and deviation > 0:
            yield deviation
