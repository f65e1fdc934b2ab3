"""Build the experiment section of the page: its figures, sentences and tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import Figure

from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.evaluation.statistics.compare import Standing
from gateau_dagster.evaluation.statistics.experiment import GateResult
from gateau_dagster.readable import number, percent, plural
from gateau_dagster.report.effort import duration, quantity
from gateau_dagster.report.experiment import (
    BenchmarkResult,
    ExperimentInputs,
    Grouping,
    TableCell,
    cost_cell,
    difference_cell,
    difference_of_row,
    in_unit,
    shown,
    span,
    value_cell,
)
from gateau_dagster.report.plots import experiment_plots as plots

KINDS = ("values", "amounts", "outcomes", "groups", "grid")


def figure_name(kind: str, benchmark: str) -> str:
    """Return the name of a benchmark's figure of one of KINDS."""
    return f"experiment/{benchmark}: {kind}"


def experiment_figures(inputs: ExperimentInputs) -> dict[str, tuple[Figure, str]]:
    """Return plots by name, each with its alternative text; plots without data are absent."""
    found = {}
    for result in inputs.results:
        for kind, figure, alt in _of_benchmark(result):
            found[figure_name(kind, result.name)] = figure, f"{result.chosen.title}: {alt}"
    return found


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
    """The page's part on one benchmark, with its figures by their names."""

    name: str
    title: str
    sentences: Sequence[str]
    table: Table
    groups: Sequence[Table]


@dataclass(frozen=True, kw_only=True)
class ExperimentSection:
    """The whole section. `overview`: None with a single benchmark, whose own table replaces it."""

    sentences: Sequence[str]
    overview: Table | None
    costs: Table
    benchmarks: Sequence[BenchmarkPart]
    headline: str
    gate: GateResult | None


def experiment_section(inputs: ExperimentInputs) -> ExperimentSection:
    """Return everything that the template fills in."""
    results = inputs.results
    return ExperimentSection(
        sentences=_sentences(inputs),
        overview=_overview(inputs) if len(results) > 1 else None,
        costs=_costs(inputs),
        benchmarks=[
            BenchmarkPart(
                name=result.name,
                title=result.chosen.title,
                sentences=_benchmark_sentences(inputs, result),
                table=_table(result, inputs.currency),
                groups=[
                    table
                    for grouping in result.groupings
                    if len(grouping.groups) <= _SHOWN
                    for table in _group_tables(result, grouping)
                ],
            )
            for result in results
        ],
        headline=" ".join(_told_apart(result) for result in results),
        gate=inputs.gate,
    )


def _sentences(inputs: ExperimentInputs) -> list[str]:
    several = [line for line in inputs.lines if len(line.variants) > 1]
    trained = [line for line in inputs.lines if line.trained]
    found = [
        f"{plural(len(inputs.lines), 'model')} answered the same questions; each value is a mean over them, with the "
        "interval that holds the true one in 95 of 100 cases, as far as chance decides which questions are asked."
    ]
    if several:
        found.append(
            "Models that were trained with several seeds count as one, by their mean. How much a seed changes is "
            f"estimated from all of them together ({', '.join(line.name for line in several)}), and is in the interval "
            "of every model that was trained."
        )
    elif trained:
        found.append(
            "Every model was trained once: how much another seed would change is not in the intervals. "
            "variants.seeds trains with several."
        )
    return found


def _told_apart(result: BenchmarkResult) -> str:
    rows, title = result.rows, result.chosen.title
    names = rows.filter("best")["variant"].to_list()
    if rows.height == 1:
        return f"{title} has values of one model alone."
    if len(names) == rows.height:
        return f"{title} tells none of the {rows.height} models apart from the best."
    if len(names) == 1:
        return f"On {title}, {names[0]} is the best, told apart from all others."
    others = [name for name in rows["variant"] if name not in names]
    if len(others) < len(names):
        verb = "is" if len(others) == 1 else "are"
        return f"On {title}, {_listed(others)} {verb} told apart from the best; the other {len(names)} models are not."
    return f"On {title}, {_listed(names)} are not told apart from the best; the others are."


def _benchmark_sentences(inputs: ExperimentInputs, result: BenchmarkResult) -> list[str]:
    chosen, unit, questions = result.chosen, result.chosen.unit, result.answered.questions
    groups = questions["group"].n_unique()
    weighed = f", in {groups} groups that count alike" if chosen.by_group and groups > 1 else ""
    better = "more is better" if chosen.higher else "less is better"
    found = [f"{plural(questions.height, 'question')}{weighed}. Unit: {unit}, {better}.", *_left_out(result)]
    found += [_told_apart(result), *_power(result), *_without_interval(result)]
    if chosen.floor:
        found.append(
            f"Answers that are all wrong have {in_unit(shown(chosen.floor, unit), unit)}: “from 0” counts from there."
        )
    missing = [line.name for line in inputs.lines if line.name not in result.rows["variant"]]
    if missing:
        found.append(f"No question of it has a value from {_listed(missing)}; the rejected table says why.")
    return found


def _left_out(result: BenchmarkResult) -> list[str]:
    """Return a sentence on questions without a value from some model. They count for no model, because otherwise models
    would be compared on different questions.
    """
    if not result.left_out:
        return []
    count, reason = len(result.left_out), result.usual_reason
    why = f", mostly for this reason: {reason}" if reason else ""
    return [
        f"{plural(count, 'further question')} {'counts' if count == 1 else 'count'} for no model, since some model has "
        f"no value for {'it' if count == 1 else 'them'}{why}."
    ]


def _power(result: BenchmarkResult) -> list[str]:
    """Return a sentence on what this number of questions can show, for planning the next experiment."""
    unit, half, count = result.chosen.unit, result.half_width, result.answered.questions.height
    if not half:
        return []
    known = in_unit(shown(half, unit, result.difference_digits), unit)
    return [
        f"A difference to {result.reference} is known to ±{known} (median). Half of that takes four times the "
        f"questions, about {number(4 * count)}, unless it comes from the seeds."
    ]


def _without_interval(result: BenchmarkResult) -> list[str]:
    if not result.rows["low"].is_null().any():
        return []
    return ["Where there is no interval, so few questions that came out alike say nothing of chance."]


def _overview(inputs: ExperimentInputs) -> Table:
    columns, by_model = [], {line.name: [] for line in inputs.lines}
    for result in inputs.results:
        unit = result.chosen.unit
        columns.append((result.chosen.title, unit if result.chosen.higher else f"{unit}, less is better"))
        rows = {row["variant"]: row for row in result.rows.iter_rows(named=True)}
        for name, cells in by_model.items():
            cells.append(value_cell(rows[name], unit) if name in rows else TableCell(value="–"))
    lines = [TableRow(name=name, reference=name == inputs.reference, cells=cells) for name, cells in by_model.items()]
    return Table(columns=columns, rows=lines)


def _table(result: BenchmarkResult, currency: str) -> Table:
    chosen, unit = result.chosen, result.chosen.unit
    judged = result.rows["judge_cost"].is_not_null().any()
    columns = [("value", unit), (f"to {result.reference}", unit), ("chance to be the best", ""), ("seeds", "")]
    columns += [("from 0", unit)] if chosen.floor else []
    columns += [("judge's cost", currency)] if judged else []
    columns += [("cost per point", "of one device" + (", and judge" if judged else ""))]
    lines = []
    for row in result.rows.iter_rows(named=True):
        cells = [
            value_cell(row, unit),
            difference_of_row(row, unit, result.difference_digits),
            TableCell(value=percent(row["probability_best"], 0)),
        ]
        cells += [TableCell(value=number(row["seeds"]))]
        cells += [TableCell(value=shown(from_floor(row["value"], chosen.floor, unit), unit))] if chosen.floor else []
        cells += [TableCell(value=number(row["judge_cost"], 3))] if judged else []
        cells += [cost_cell(row, higher=chosen.higher, currency=currency)]
        lines.append(TableRow(name=row["variant"], reference=row["variant"] == result.reference, cells=cells))
    return Table(columns=columns, rows=lines)


def from_floor(value: float, floor: float, unit: str) -> float:
    """Return a value on a scale where all-wrong answers have 0; in %, all-right answers keep 100."""
    return (value - floor) * (_HIGHEST / (_HIGHEST - floor) if unit == "%" else 1.0)


def _group_tables(result: BenchmarkResult, grouping: Grouping) -> Iterator[Table]:
    """Yield the values by group, with the total at the end; then the differences to the reference."""
    unit, reference = result.chosen.unit, result.reference
    columns = [(name, plural(count, "question")) for name, count in grouping.groups]
    rows = {row["variant"]: row for row in result.rows.iter_rows(named=True)}
    names = [model.name for model in result.answered.models]
    values = [
        TableRow(
            name=name,
            reference=name == reference,
            cells=[*(_standing_cell(each, unit) for each in grouping.of(name)), value_cell(rows[name], unit)],
        )
        for name in names
    ]
    yield Table(heading=grouping.heading, columns=[*columns, ("total", unit)], rows=values)
    if reference in names:
        compared = [name for name in names if name != reference]
        differences = [
            TableRow(
                name=name,
                reference=False,
                cells=[
                    *(difference_cell(each.difference, unit, result.difference_digits) for each in grouping.of(name)),
                    difference_of_row(rows[name], unit, result.difference_digits),
                ],
            )
            for name in compared
        ]
        heading = f"{grouping.heading}, difference to {reference}"
        yield Table(heading=heading, columns=[*columns, ("total", unit)], rows=differences)


def _standing_cell(standing: Standing, unit: str) -> TableCell:
    total = standing.total
    return TableCell(value=shown(total.value, unit), interval=span(total.low, total.high, unit), best=standing.best)


def _costs(inputs: ExperimentInputs) -> Table:
    """Return one table of costs for all benchmarks, since the same models answered all of them."""
    columns = [("seeds", ""), ("long samples", ""), ("tokens", ""), ("scoring", "of one device"), ("training", "")]
    lines = []
    for row in inputs.table.unique("variant", keep="first", maintain_order=True).iter_rows(named=True):
        texts = [
            number(row["seeds"]),
            number(row["samples"]),
            quantity(row["tokens"]),
            *(duration(_seconds(row[name])) for name in ("scoring_hours", "training_hours")),
        ]
        cells = [TableCell(value=text) for text in texts]
        lines.append(TableRow(name=row["variant"], reference=row["variant"] == inputs.reference, cells=cells))
    return Table(columns=columns, rows=lines)


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else 3600 * hours


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def amounts(result: BenchmarkResult) -> pl.DataFrame:
    """Return `variant`, `series`, `samples`, `value`, `low`, `high`, to be drawn over the number of samples.

    Only series with several numbers of samples keep their name; for others it is empty.
    """
    series = pl.col("variant").replace_strict(dict(result.series), return_dtype=pl.String())
    found = result.rows.select("variant", "samples", "value", "low", "high", series=series)
    several = pl.col("samples").n_unique().over("series") > 1
    return found.with_columns(series=pl.when(several).then("series").otherwise(pl.lit("")))
