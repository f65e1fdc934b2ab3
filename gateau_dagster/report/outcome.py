"""Summarise the results of the fine-tuning run and the evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gateau_dagster.evaluation.page import PageFigure, PageSection
from gateau_dagster.evaluation.registry import asset_of, compares, configured_benchmarks, scored_benchmarks
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.plots.training_plots import curve


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """The figures of a run; a figure that was never logged is None."""

    steps: int
    first_loss: float | None
    last_loss: float | None
    largest_grad_norm: float | None
    tokens_per_second: float | None
    not_finite: int


def training_facts(log: Sequence[Mapping[str, Any]]) -> TrainingFacts:
    """Return the figures of a training log; `not_finite` counts logged losses that are NaN or infinite."""
    losses = curve(log, "loss")[1]
    norms = curve(log, "grad_norm")[1]
    speeds = curve(log, "tokens_per_second")[1]
    bad = sum(1 for entry in log if entry.get("loss") is not None and not math.isfinite(float(entry["loss"])))
    return TrainingFacts(
        steps=int(max((entry["step"] for entry in log), default=0)),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        largest_grad_norm=max(norms, default=None),
        tokens_per_second=median(speeds) if speeds else None,
        not_finite=bad,
    )


@dataclass(frozen=True, kw_only=True)
class BenchmarkOutcome:
    """A benchmark for the page. `section`: None if it was not run. `asked`: whether it is to run."""

    name: str
    title: str
    asked: bool
    section: PageSection | None

    @property
    def figures(self) -> dict[str, PageFigure]:
        """Return the section's figures by names that are unique on the page."""
        figures = self.section.figures if self.section else ()
        return {f"{asset_of(self.name)}: {figure.name}": figure for figure in figures}


def benchmark_outcomes(inputs: ReportInputs) -> list[BenchmarkOutcome]:
    """Return every benchmark that runs by default or that the configuration names, in order. Those that only the
    experiment shows are left out.
    """
    found, scored = [], scored_benchmarks(inputs.config)
    for name, each in configured_benchmarks(inputs.config).items():
        if not compares(each) and name in scored:
            continue
        table, section = inputs.evaluations.get(name), None
        if compares(each) and table is not None and not table.is_empty():
            section = each.section(table)
        found.append(BenchmarkOutcome(name=name, title=each.title, asked=each.asked, section=section))
    return found
