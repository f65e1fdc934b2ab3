"""Build the figures and tables of the page's experiment section."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import Figure

from gateau_dagster.evaluation.benchmark import PageAmount, PageChart
from gateau_dagster.readable import number, percent, plural, unit_of_difference
from gateau_dagster.report.effort import duration, quantity
from gateau_dagster.report.experiment import (
    BenchmarkResult,
    ExperimentInputs,
    Grouping,
    TableCell,
    cost_cell,
    difference_cell,
    shown,
    value_cell,
)
from gateau_dagster.report.plots import Drawing
from gateau_dagster.report.plots import experiment_plots as plots


def figure_name(kind: str, benchmark: str) -> str:
    """Return the name of a benchmark's figure: values, amounts, outcomes, groups or grid."""
    return f"experiment/{benchmark}: {kind}"


def experiment_figures(inputs: ExperimentInputs) -> dict[str, Drawing]:
    """Return plots by name; plots without data are absent."""
    return {
        figure_name(kind, result.name): Drawing(figure, f"{result.chosen.title}: {alt}")
        for result in inputs.results
        for kind, figure, alt in _of_benchmark(result)
    }


def experiment_charts(inputs: ExperimentInputs) -> Iterator[PageChart]:
    """Yield one chart per benchmark: the models' values with their intervals."""
    for result in inputs.results:
        amounts = [
            PageAmount(name=name, value=value, low=low, high=high, reference=name == result.reference)
            for name, value, low, high in result.rows.select("variant", "value", "low", "high").iter_rows()
        ]
        yield PageChart(name=f"{result.name} ({result.chosen.unit})", amounts=amounts)


def _of_benchmark(result: BenchmarkResult) -> Iterator[tuple[str, Figure, str]]:
    title, reference = result.chosen.title, result.reference
    unit, bounds = result.chosen.unit, result.chosen.bounds
    count = plural(result.rows.height, "model")
    alt = f"values of {count} and their differences to {reference}, with intervals; the table below holds the same"
    yield (
        "values",
        plots.values_and_differences(result.rows, title=title, unit=unit, reference=reference, bounds=bounds),
        alt,
    )
    points = amounts(result)
    if (points["series"] != "").any():
        figure = plots.over_amounts(points, title=f"{title}: how many samples are enough?", unit=unit, bounds=bounds)
        yield "amounts", figure, "values over the number of samples, a line a method"
    if result.outcomes:
        figure = plots.outcome_bars(result.outcomes, title=f"{title}: question by question", reference=reference)
        yield "outcomes", figure, f"shares of questions that each model answers better than {reference}, equally, worse"
    for grouping in [each for each in result.groupings if each.heading == "length"]:  # other groupings have no order
        values = [
            (model.name, [each.total.value for each in grouping.of(model.name)]) for model in result.answered.models
        ]
        names, heading = [name for name, _ in grouping.groups], grouping.heading
        figure = plots.by_group(names, values, title=f"{title}, by {heading}", heading=heading, unit=unit)
        yield "groups", figure, f"values by {heading}, a line a model; the table below holds the same"
    if result.grid is not None:
        yield (
            "grid",
            plots.grids(result.grid, title=f"{title}, by length and depth", unit=unit, bounds=bounds),
            f"heat maps of {count}",
        )


_SHOWN = 60
"""Groupings with more groups than this are not shown in a table."""
_HIGHEST = 100.0
"""The value of answers that are all right, if the unit is %."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table: the model's name, whether it is the reference, and its cells."""

    name: str
    reference: bool
    cells: Sequence[TableCell]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with one row per model.

    heading: what its columns are; may be empty.
    columns: their headings, and a line below each.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[TableRow]
    heading: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchmarkPart:
    """The tables on one benchmark."""

    result: BenchmarkResult
    table: Table
    groups: Sequence[Table]


@dataclass(frozen=True, kw_only=True)
class ExperimentSection:
    """The section's tables. `overview`: None with a single benchmark, whose own table replaces it."""

    overview: Table | None
    costs: Table
    benchmarks: Sequence[BenchmarkPart]


def experiment_section(inputs: ExperimentInputs) -> ExperimentSection:
    """Return the tables that the template shows; it has the text."""
    return ExperimentSection(
        overview=_overview(inputs) if len(inputs.results) > 1 else None,
        costs=_costs(inputs),
        benchmarks=[
            BenchmarkPart(
                result=result,
                table=_table(result, inputs.currency),
                groups=[
                    table
                    for grouping in result.groupings
                    if len(grouping.groups) <= _SHOWN
                    for table in _group_tables(result, grouping)
                ],
            )
            for result in inputs.results
        ],
    )


def _overview(inputs: ExperimentInputs) -> Table:
    columns, by_model = [], {line.name: [] for line in inputs.lines}
    for result in inputs.results:
        unit, cells = result.chosen.unit, _values(result)
        columns.append((result.chosen.title, unit if result.chosen.higher else f"{unit}, less is better"))
        for name, row in by_model.items():
            row.append(cells.get(name, TableCell(value="–")))
    rows = [TableRow(name=name, reference=name == inputs.reference, cells=cells) for name, cells in by_model.items()]
    return Table(columns=columns, rows=rows)


def _values(result: BenchmarkResult) -> dict[str, TableCell]:
    columns = result.rows.select("variant", "value", "low", "high", "best").iter_rows()
    unit = result.chosen.unit
    return {name: value_cell(value, low, high, unit, best=best) for name, value, low, high, best in columns}


def _differences(result: BenchmarkResult) -> dict[str, TableCell]:
    columns = result.rows.select("variant", "difference", "difference_low", "difference_high").iter_rows()
    unit, digits = result.chosen.unit, result.difference_digits
    return {name: difference_cell(value, low, high, unit, digits) for name, value, low, high in columns}


def _table(result: BenchmarkResult, currency: str) -> Table:
    chosen, unit = result.chosen, result.chosen.unit
    judged = result.rows["judge_cost"].is_not_null().any()
    columns = [
        ("value", unit),
        (f"to {result.reference}", unit_of_difference(unit)),
        ("chance to be the best", ""),
        ("seeds", ""),
    ]
    columns += [("from 0", unit)] if chosen.floor else []
    columns += [("judge's cost", currency)] if judged else []
    columns += [("cost per point", "of one device" + (", and judge" if judged else ""))]
    values, differences, rows = _values(result), _differences(result), []
    for row in result.rows.iter_rows(named=True):
        name = row["variant"]
        texts = [percent(row["probability_best"], 0), number(row["seeds"])]
        texts += [shown(from_floor(row["value"], chosen.floor, unit), unit)] if chosen.floor else []
        texts += [number(row["judge_cost"], 3)] if judged else []
        cost = cost_cell(row, higher=chosen.higher, currency=currency)
        cells = [values[name], differences[name], *(TableCell(value=text) for text in texts), cost]
        rows.append(TableRow(name=name, reference=name == result.reference, cells=cells))
    return Table(columns=columns, rows=rows)


def from_floor(value: float, floor: float, unit: str) -> float:
    """Return a value on a scale where all-wrong answers have 0; in %, all-right answers keep 100."""
    return (value - floor) * (_HIGHEST / (_HIGHEST - floor) if unit == "%" else 1.0)


def _group_tables(result: BenchmarkResult, grouping: Grouping) -> Iterator[Table]:
    """Yield the values by group, with the total at the end; then the differences to the reference."""
    unit, digits, reference = result.chosen.unit, result.difference_digits, result.reference
    columns = [(name, plural(count, "question")) for name, count in grouping.groups]
    values, differences, rows, compared = _values(result), _differences(result), [], []
    names = [model.name for model in result.answered.models]
    for name in names:
        standings = grouping.of(name)
        cells = [value_cell(e.total.value, e.total.low, e.total.high, unit, best=e.best) for e in standings]
        rows.append(TableRow(name=name, reference=name == reference, cells=[*cells, values[name]]))
        cells = [
            TableCell(value="–") if gap is None else difference_cell(gap.value, gap.low, gap.high, unit, digits)
            for gap in (each.difference for each in standings)
        ]
        compared.append(TableRow(name=name, reference=False, cells=[*cells, differences[name]]))
    yield Table(heading=grouping.heading, columns=[*columns, ("total", unit)], rows=rows)
    if reference in names:
        others = [row for row in compared if row.name != reference]
        columns.append(("total", unit_of_difference(unit)))
        yield Table(heading=f"{grouping.heading}, difference to {reference}", columns=columns, rows=others)


def _costs(inputs: ExperimentInputs) -> Table:
    """Return one table of costs for all benchmarks, since the same models answered all of them."""
    columns = [("seeds", ""), ("long samples", ""), ("tokens", ""), ("scoring", "of one device"), ("training", "")]
    rows = []
    for row in inputs.table.unique("variant", keep="first", maintain_order=True).iter_rows(named=True):
        texts = [number(row["seeds"]), number(row["samples"]), quantity(row["tokens"])]
        hours = (row["scoring_hours"], row["training_hours"])
        texts += [duration(None if each is None else 3600 * each) for each in hours]
        cells = [TableCell(value=text) for text in texts]
        rows.append(TableRow(name=row["variant"], reference=row["variant"] == inputs.reference, cells=cells))
    return Table(columns=columns, rows=rows)


def amounts(result: BenchmarkResult) -> pl.DataFrame:
    """Return `variant`, `series`, `samples`, `value`, `low`, `high`, to be drawn over the number of samples.

    Only series with several numbers of samples keep their name; for others it is empty.
    """
    series = pl.col("variant").replace_strict(
        {name: line.series for name, line in result.lines.items()}, return_dtype=pl.String()
    )
    found = result.rows.select("variant", "samples", "value", "low", "high", series=series)
    several = pl.col("samples").n_unique().over("series") > 1
    return found.with_columns(series=pl.when(several).then("series").otherwise(pl.lit("")))
