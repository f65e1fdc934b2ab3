"""Compute the table `experiment` from the values of every variant's questions: one row per model and benchmark."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.variants import BASE, CHECKPOINT, Variant
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.compare import (
    DRAWS,
    Interval,
    Model,
    Standing,
    Total,
    compare,
    total_of,
)
from gateau_dagster.readable import fixed, nearest_name, percentage

if TYPE_CHECKING:
    from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model of the experiment, with one row of the table for each benchmark.

    variants: the names of its variants, which differ only in their seed. trained: whether another seed gives another
    model. series: the preset or method that selected its samples, equal for any number of samples, or the name of a
    variant with other keys; empty without a selection. amount: the fraction or the budget of tokens of this selection;
    None: that of `selection`.
    """

    name: str
    variants: tuple[str, ...]
    trained: bool = True
    series: str = ""
    amount: float | None = None


def lines_of(config: Config) -> list[Line]:
    """Return the lines in the order of the variants; a line of a single variant has the name of the variant."""
    cells: dict[str, list] = {}
    for variant in config.variant_set.values():
        cells.setdefault(variant.cell, []).append(variant)
    return [
        Line(
            name=cell if len(variants) > 1 else variants[0].name,
            variants=tuple(variant.name for variant in variants),
            trained=variants[0].trained or variants[0].kind == CHECKPOINT,
            series=_series(variants[0]),
            amount=variants[0].fraction or variants[0].budget,
        )
        for cell, variants in cells.items()
    ]


def _series(variant: Variant) -> str:
    """Return the name of the selection; a variant with other keys is a separate series, whatever its method."""
    if variant.changed is not None:
        return variant.cell
    return (variant.preset or variant.method or "") if variant.kind == "selected" else ""


def reference_of(config: Config) -> str:
    """Return the name of the reference row: that of `evaluation.reference`, or the model before training."""
    return row_of(config, evaluation_of(config).reference or BASE)


def row_of(config: Config, name: str) -> str:
    """Return the name of the row for the name of a row or variant; return an unknown name unchanged."""
    return next((line.name for line in lines_of(config) if name == line.name or name in line.variants), name)


def check_experiment(config: Config) -> None:
    """Check the names in `evaluation.reference` and `evaluation.gate`.

    Raises:
        GateauError: the reference is not a variant, or the gate names an unknown variant or benchmark.
    """
    known, gate = [line.name for line in lines_of(config)], evaluation_of(config).gate
    named = {"reference": evaluation_of(config).reference, "gate.variant": None if gate is None else gate.variant}
    for place, name in named.items():
        if name is not None and row_of(config, name) not in known:
            raise GateauError(
                "evaluation.unknown_variant", f"evaluation.{place}: no variant {name}; {nearest_name(name, known)}"
            )
    scored = list(scored_benchmarks(config))
    if gate is not None and gate.benchmark not in scored:
        raise GateauError(
            "evaluation.unknown_benchmark",
            f"evaluation.gate.benchmark: {gate.benchmark} is not among the benchmarks that run and give a value to "
            f"each question: {', '.join(scored) or 'none'}. Name one of these, or add it to evaluation.benchmarks.",
        )


CODE_VERSION = "4"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The amount of data of a variant, and the cost of computing and judging it; None: unknown, or nothing.

    Hours are those of one device.
    """

    samples: int | None = None
    tokens: int | None = None
    scoring_hours: float | None = None
    training_hours: float | None = None
    judge_cost: float | None = None

    @property
    def hours(self) -> float | None:
        """Return the known hours of scoring and training on one device; None if both are unknown."""
        known = [hours for hours in (self.scoring_hours, self.training_hours) if hours is not None]
        return sum(known) if known else None


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestions:
    """The questions that all variants answered (`question_id`, `group`), and the values of each model."""

    questions: pl.DataFrame
    models: Sequence[Model]

    def total(self, *, by_group: bool) -> Total:
        """Return the definition of the models' total."""
        return total_of(self.questions["group"].to_list(), by_group=by_group)

    def part(self, places: Sequence[int]) -> AnsweredQuestions:
        """Return the questions at these indices, with their values."""
        models = [
            Model(name=model.name, values=model.values[:, places], trained=model.trained) for model in self.models
        ]
        return AnsweredQuestions(questions=self.questions[places], models=models)


def answered(
    benchmark: str, lines: Sequence[Line], scores: Mapping[str, pl.DataFrame], reasons: Sequence[str] = ()
) -> AnsweredQuestions:
    """Return the comparable questions and models, without models that have a variant with no value.

    Args:
        scores: tables.SCORES by variant.
        reasons: for the message, the reasons why questions have no value.

    Raises:
        GateauError: no question has a value from all these models, or a value is not finite.
    """
    present = [line for line in lines if not any(scores[name].is_empty() for name in line.variants)]
    found = {name: scores[name].sort("question_id") for line in present for name in line.variants}
    for name, table in found.items():
        if not table["value"].is_finite().all():
            raise GateauError(
                "evaluation.not_finite",
                f"scores/{benchmark}[{name}]: a value is not a number. Compute the table again; if it happens "
                "again, report it.",
            )
    common = next(iter(found.values()), pl.DataFrame(schema=tables.schema(tables.SCORES)))
    # Only questions with a value from every model. Otherwise a model would gain by failing on hard questions.
    for table in found.values():
        common = common.join(table, on="question_id", how="semi", maintain_order="left")
    if common.is_empty():
        raise GateauError(
            "evaluation.no_answers",
            f"no question of {benchmark} has a value from every variant, so nothing can be compared. The "
            f"rejected tables of scores/{benchmark} say why{f', such as: {reasons[0]}' if reasons else ''}.",
        )
    # The tables are sorted, so that all have the questions in the same order.
    values = {
        name: table.join(common, on="question_id", how="semi")["value"].to_numpy() for name, table in found.items()
    }
    models = [
        Model(name=line.name, values=np.stack([values[name] for name in line.variants]), trained=line.trained)
        for line in present
    ]
    return AnsweredQuestions(questions=common.select("question_id", "group"), models=models)


def experiment_rows(
    chosen: Benchmark,
    lines: Sequence[Line],
    scores: Mapping[str, pl.DataFrame],
    costs: Mapping[str, Cost],
    *,
    reference: str,
    draws: int = DRAWS,
    reasons: Sequence[str] = (),
) -> pl.DataFrame:
    """Return tables.EXPERIMENT for one benchmark, one row per model.

    Args:
        costs: the costs by variant; a row has the mean over its variants.
        reasons: for the message, the reasons why questions have no value.

    Raises:
        GateauError: see `answered`.
    """
    found = answered(chosen.name, lines, scores, reasons)
    total = found.total(by_group=chosen.by_group)
    standings = compare(
        found.models, total, reference=reference, higher=chosen.higher, bounds=chosen.bounds, draws=draws
    )
    of_line = {line.name: mean_cost([costs[name] for name in line.variants]) for line in lines}
    seeds = {model.name: len(model.values) for model in found.models}
    rows = [
        {
            "variant": each.name,
            "benchmark": chosen.name,
            **_named("", each.total),
            **_named("difference", each.difference),
            "best": each.best,
            "probability_best": each.probability_best,
            "questions": found.questions.height,
            "seeds": seeds[each.name],
            **{field.name: getattr(of_line[each.name], field.name) for field in fields(Cost)},
            "hours_per_point": per_point(each, of_line[each.name].hours, higher=chosen.higher),
            "judge_cost_per_point": per_point(each, of_line[each.name].judge_cost, higher=chosen.higher),
        }
        for each in standings
    ]
    return pl.DataFrame(rows, schema=tables.schema(tables.EXPERIMENT))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Return the mean cost of variants that differ only in their seed; None for a value that a variant lacks."""
    means: dict[str, Any] = {}
    for field in fields(Cost):
        values = [getattr(cost, field.name) for cost in costs]
        means[field.name] = None if None in values else fmean(values)
    for name in ("samples", "tokens"):
        means[name] = None if means[name] is None else round(means[name])
    return Cost(**means)


def per_point(standing: Standing, amount: float | None, *, higher: bool) -> float | None:
    """Return the amount per unit of improvement over the reference; None if there is none or it is unknown."""
    gain = 0.0 if standing.difference is None else standing.difference.value * (1 if higher else -1)
    return amount / gain if gain > 0 and amount is not None else None


def _named(prefix: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the three columns of an interval."""
    names = (prefix or "value", *(f"{prefix}_{end}".lstrip("_") for end in ("low", "high")))
    ends = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
    return dict(zip(names, ends, strict=True))


Verdict = Literal["passed", "not excluded", "lost"]
_WORST: tuple[Verdict, ...] = ("lost", "not excluded", "passed")


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The worst verdict of the models, and one sentence per model."""

    verdict: Verdict
    sentences: Sequence[str]


def gate(
    experiment: pl.DataFrame,
    *,
    benchmark: str,
    margin: float,
    variant: str | None = None,
    higher: bool = True,
    unit: str = "",
    expected: Collection[str] = (),
) -> GateResult:
    """Return whether a model, or each model that differs from the reference, lost more than `margin` of the unit.

    The verdict is "lost" if the whole interval of the loss is above the margin. It is "not excluded" if a part of the
    interval is above it, or if the interval or the value is unknown.

    Args:
        experiment: tables.EXPERIMENT.
        expected: the models that should have a row, apart from the reference.

    Raises:
        GateauError: the table has no row for the model and the benchmark.
    """
    rows = experiment.filter(benchmark=benchmark)
    compared = rows.filter(pl.col("difference").is_not_null())
    wanted = compared if variant is None else compared.filter(variant=variant)
    measured = {*rows["variant"]}
    unmeasured = [name for name in expected if name not in measured and variant in (None, name)]
    if wanted.is_empty() and not (unmeasured and measured):
        raise GateauError("evaluation.no_answers", _no_row(rows, benchmark, variant))
    found = [_judged(row, margin, higher, unit) for row in wanted.iter_rows(named=True)]
    found += [_unmeasured(name, benchmark) for name in unmeasured]
    verdicts = {verdict for verdict, _ in found}
    worst: Verdict = next(each for each in _WORST if each in verdicts)
    return GateResult(verdict=worst, sentences=[sentence for _, sentence in found])


def configured_gate(config: Config, experiment: pl.DataFrame) -> GateResult | None:
    """Return the result of `evaluation.gate` on tables.EXPERIMENT; None without a gate. `gate` lists the errors."""
    settings = evaluation_of(config).gate
    if settings is None:
        return None
    scored = scored_benchmarks(config)[settings.benchmark]
    return gate(
        experiment,
        benchmark=settings.benchmark,
        margin=settings.margin,
        variant=None if settings.variant is None else row_of(config, settings.variant),
        higher=scored.higher,
        unit=scored.unit,
        expected=[line.name for line in lines_of(config) if line.name != reference_of(config)],
    )


def _judged(row: dict, margin: float, higher: bool, unit: str) -> tuple[Verdict, str]:
    name, loss = row["variant"], -row["difference"] if higher else row["difference"]
    digits = _digits(margin)
    change = f"{'loses' if loss > 0 else 'gains'} {_shown(abs(loss), unit, digits)} on {row['benchmark']}"
    if row["difference_low"] is None:
        return "not excluded", f"{name} {change}; its questions do not say how sure that is."
    ends = (row["difference_low"], row["difference_high"])
    least, most = (-ends[1], -ends[0]) if higher else ends
    sure = f"95 % interval of the loss: {_shown(least, unit, digits)} to {_shown(most, unit, digits)}"
    limit = f"a loss above {_shown(margin, unit, digits)}"
    if least > margin:
        return "lost", f"{name} {change} ({sure}): {limit} is sure."
    if most > margin:
        return "not excluded", f"{name} {change} ({sure}): {limit} is not excluded."
    return "passed", f"{name} {change} ({sure}): {limit} is excluded."


def _unmeasured(name: str, benchmark: str) -> tuple[Verdict, str]:
    said = (
        f"{name} has no value by {benchmark}: no loss is excluded. The rejected tables of scores/{benchmark} say why."
    )
    return "not excluded", said


def _digits(margin: float) -> int:
    return 3 if margin >= 0.1 or margin <= 0 else 2 - math.floor(math.log10(margin))


def _shown(value: float, unit: str, digits: int) -> str:
    return f"{percentage(value / 100)}" if unit == "%" else f"{fixed(value, digits)} {unit}".rstrip()


def _no_row(rows: pl.DataFrame, benchmark: str, variant: str | None) -> str:
    names = ", ".join(rows["variant"].to_list()) or "none"
    if variant is None:
        return (
            f"evaluation.gate.benchmark: no variant is set against the reference by {benchmark}. It has values of: "
            f"{names}. Name one of these as evaluation.reference."
        )
    return f"evaluation.gate.variant: {variant} is not set against the reference by {benchmark}, which has: {names}."
