"""The gate: decides whether a model has lost too much against the reference."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.evaluation.statistics.lines import lines_of, reference_of, row_of
from gateau_dagster.readable import fixed, percentage

if TYPE_CHECKING:
    from gateau_dagster.config import Config

Verdict = Literal["passed", "not excluded", "lost"]
_WORST: tuple[Verdict, ...] = ("lost", "not excluded", "passed")


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The worst verdict of the models, and a sentence on each of them."""

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
    """Return whether one model, or each with a difference to the reference, has lost more than `margin` of the unit.

    Lost: the whole interval of the loss is above the margin. Not excluded: part of it is, or the interval or the value
    is unknown.

    Args:
        experiment: tables.EXPERIMENT.
        expected: models that should have a row, beside the reference.

    Raises:
        GateauError: the table has no such row.
    """
    rows = experiment.filter(benchmark=benchmark)
    compared = rows.filter(pl.col("difference").is_not_null())
    wanted = compared if variant is None else compared.filter(variant=variant)
    measured = {*rows["variant"]}
    unmeasured = [name for name in expected if name not in measured and variant in (None, name)]
    if wanted.is_empty() and not (unmeasured and measured):
        raise GateauError(_no_row(rows, benchmark, variant))
    found = [_judged(row, margin, higher, unit) for row in wanted.iter_rows(named=True)]
    found += [_unmeasured(name, benchmark) for name in unmeasured]
    verdicts = {verdict for verdict, _ in found}
    worst: Verdict = next(each for each in _WORST if each in verdicts)
    return GateResult(verdict=worst, sentences=[sentence for _, sentence in found])


def configured_gate(config: Config, experiment: pl.DataFrame) -> GateResult | None:
    """Return the result of `evaluation.gate` on tables.EXPERIMENT; None without a gate. Raises as `gate` does."""
    settings = config.evaluation.gate
    if settings is None:
        return None
    scored = scored_benchmarks(config)[settings.benchmark].scored
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
    """Return the decimals of figures shown with a margin: three, or enough for three digits of it."""
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
