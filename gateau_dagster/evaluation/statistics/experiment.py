"""Compute the table `experiment` from the values of every variant's questions: one row per model and benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.registry import ChosenBenchmark
from gateau_dagster.evaluation.statistics.bootstrap import DRAWS
from gateau_dagster.evaluation.statistics.compare import Interval, Model, Standing, compare
from gateau_dagster.evaluation.statistics.lines import Line
from gateau_dagster.evaluation.statistics.total import Total, total_of

CODE_VERSION = "4"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The data of a variant, and the cost of computing and judging it; None: unknown, or nothing.

    Hours are of one device.
    """

    samples: int | None = None
    tokens: int | None = None
    scoring_hours: float | None = None
    training_hours: float | None = None
    judge_cost: float | None = None

    @property
    def hours(self) -> float | None:
        """Return the hours of scoring and training, as far as they are known."""
        known = [hours for hours in (self.scoring_hours, self.training_hours) if hours is not None]
        return sum(known) if known else None


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestions:
    """The questions that all variants answered (`question_id`, `group`), and each model's values."""

    questions: pl.DataFrame
    models: Sequence[Model]

    def total(self, *, by_group: bool) -> Total:
        """Return the definition of the models' total."""
        return total_of(self.questions["group"].to_list(), by_group=by_group)

    def part(self, places: Sequence[int]) -> "AnsweredQuestions":
        """Return some of the questions, by index."""
        models = [
            Model(name=model.name, values=model.values[:, places], trained=model.trained) for model in self.models
        ]
        return AnsweredQuestions(questions=self.questions[places], models=models)


def answered(
    benchmark: str, lines: Sequence[Line], scores: Mapping[str, pl.DataFrame], reasons: Sequence[str] = ()
) -> AnsweredQuestions:
    """Return the comparable questions and models. A model is left out where one of its variants has no value at all.

    Args:
        scores: tables.SCORES by variant.
        reasons: why questions have no value, for the message.

    Raises:
        GateauError: no question has a value from all others, or a value is not finite.
    """
    present = [line for line in lines if not any(scores[name].is_empty() for name in line.variants)]
    found = {name: scores[name].sort("question_id") for line in present for name in line.variants}
    for name, table in found.items():
        if not table["value"].is_finite().all():
            raise GateauError(f"scores/{benchmark}[{name}]: a value is not a number. Make it again, or report it.")
    common = next(iter(found.values()), pl.DataFrame(schema=tables.schema(tables.SCORES)))
    for table in found.values():
        common = common.join(table, on="question_id", how="semi", maintain_order="left")
    if common.is_empty():
        raise GateauError(
            f"no question of {benchmark} has a value from every variant, so that nothing can be compared. "
            f"The rejected tables of scores/{benchmark} say why{f', such as: {reasons[0]}' if reasons else ''}."
        )
    # The tables are sorted, so that all have the questions in the same order.
    values = {
        name: table.join(common, on="question_id", how="semi")["value"].to_numpy() for name, table in found.items()
    }
    models = [
        Model(
            name=line.name,
            values=np.stack([values[name] for name in line.variants]),
            trained=line.trained,
        )
        for line in present
    ]
    return AnsweredQuestions(questions=common.select("question_id", "group"), models=models)


def experiment_rows(
    chosen: ChosenBenchmark,
    lines: Sequence[Line],
    scores: Mapping[str, pl.DataFrame],
    costs: Mapping[str, Cost],
    *,
    reference: str,
    draws: int = DRAWS,
    reasons: Sequence[str] = (),
) -> pl.DataFrame:
    """Return tables.EXPERIMENT for one benchmark, one row per model; raises as `answered`.

    Args:
        costs: by variant; a row has the mean over its variants.
        reasons: why questions have no value, for the message.
    """
    found, scored = answered(chosen.name, lines, scores, reasons), chosen.scored
    total = found.total(by_group=scored.by_group)
    standings = compare(
        found.models, total, reference=reference, higher=scored.higher, bounds=scored.bounds, draws=draws
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
            "hours_per_point": per_point(each, of_line[each.name].hours, higher=scored.higher),
            "judge_cost_per_point": per_point(each, of_line[each.name].judge_cost, higher=scored.higher),
        }
        for each in standings
    ]
    return pl.DataFrame(rows, schema=tables.schema(tables.EXPERIMENT))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Return the mean of variants that differ only in their seed; a value that one of them lacks is None."""
    means: dict[str, Any] = {}
    for field in fields(Cost):
        values = [getattr(cost, field.name) for cost in costs]
        means[field.name] = None if None in values else fmean(values)
    for name in ("samples", "tokens"):
        means[name] = None if means[name] is None else round(means[name])
    return Cost(**means)


def per_point(standing: Standing, amount: float | None, *, higher: bool) -> float | None:
    """Return the amount per unit of improvement over the reference; None without an improvement, or if unknown."""
    gain = 0.0 if standing.difference is None else standing.difference.value * (1 if higher else -1)
    return amount / gain if gain > 0 and amount is not None else None


def _named(prefix: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the three columns of an interval."""
    names = (prefix or "value", *(f"{prefix}_{end}".lstrip("_") for end in ("low", "high")))
    ends = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
    return dict(zip(names, ends, strict=True))
