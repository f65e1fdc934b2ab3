"""Benchmarks that exist in a test alone, and the values of models' answers to them."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.benchmark import Benchmark, Materials, Measured, MeasuredBenchmark
from gateau_dagster.features.evaluation.statistics.experiment import Line
from tests.kit.project import configured


class Unmeasured(MeasuredBenchmark):
    """A benchmark that measures nothing: the tests bring its values along."""

    name = "quiz"
    title = "A quiz"
    description = "Questions of a test."
    unit = "%"

    def measure(self, materials: Materials, variant: str) -> Measured:
        raise AssertionError("nothing is measured")


def chosen(**changed: object) -> Benchmark:
    """The benchmark with other class variables or methods."""
    return type("Changed", (Unmeasured,), changed)(configured(), Section())


def scores(values: Sequence[float], groups: Sequence[str] = ("all",), first: int = 0) -> pl.DataFrame:
    """tables.SCORES: questions q0000, q0001 and so on, groups in turn."""
    rows = [
        (f"q{place:04d}", groups[place % len(groups)], float(value)) for place, value in enumerate(values, start=first)
    ]
    return pl.DataFrame(rows, schema=tables.schema(tables.SCORES), orient="row")


LINES = (
    Line(name="base", variants=("base",), trained=False),
    Line(name="full", variants=("full-s0", "full-s1")),
    *(
        Line(
            name=f"{method}-{fraction}",
            variants=(f"{method}-{fraction}-s0", f"{method}-{fraction}-s1"),
            series=method,
            amount=float(fraction),
        )
        for method in ("robust", "random")
        for fraction in ("0.1", "0.3", "0.5")
    ),
)
_EFFECTS = {"base": -25.0, "full": -4.0, "robust": 4.0, "random": -6.0}


def experiment_scores(
    questions: int = 120, groups: Sequence[str] = ("qa", "summaries", "code"), seed: int = 0
) -> dict[str, pl.DataFrame]:
    """Return each variant's values in %: the robust variants are best, more so with more samples."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(55, 22, questions)
    found = {}
    for line in LINES:
        effect = _EFFECTS[line.series or line.name] + (10 * float(line.name[-3:]) if line.series else 0)
        for name in line.variants:
            apart = effect + rng.normal(0, 1.2) + rng.normal(0, 12, questions)
            found[name] = scores(np.clip(hard + apart, 0, 100).round(1).tolist(), groups)
    return found
