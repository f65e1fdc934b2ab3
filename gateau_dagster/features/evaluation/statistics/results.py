"""Prepare an experiment for the page: its results by benchmark, the tables, and the figures."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.features.evaluation.statistics.compare import Interval, Outcomes, Standing, compare, outcomes
from gateau_dagster.features.evaluation.statistics.experiment import AnsweredQuestions, GateResult, Line, answered
from gateau_dagster.readable import (
    PageAmount,
    PageChart,
    duration,
    fixed,
    number,
    percent,
    plural,
    quantity,
    unit_of_difference,
)

if TYPE_CHECKING:  # matplotlib is only needed for drawing
    from matplotlib.figure import Figure

    from gateau_dagster.plots import Drawing

RANDOM = "random"
"""The method that draws samples, and the series of models trained on them."""
_LARGE = 100
_MOST_DIGITS = 9
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """A value in a table. `best`: whether it is statistically tied with the column's best."""

    value: str
    interval: str = ""
    best: bool = False


def digits_for(half: float | None) -> int:
    """Return the decimals of figures that are known to ±`half`: two significant digits of it; 0 if it is not known."""
    return min(_MOST_DIGITS, max(0, 1 - math.floor(math.log10(half)))) if half else 0


def shown(value: float | None, unit: str, digits: int = 0) -> str:
    """Return one decimal for percentages, points and large numbers, three for others; `digits` if that is more."""
    usual = 1 if unit in {"%", "points"} or abs(value or 0.0) >= _LARGE else 3
    return fixed(value, max(usual, digits))


def span(low: float | None, high: float | None, unit: str, digits: int = 0) -> str:
    """Return an interval as text; empty if it is not known."""
    return "" if low is None or high is None else f"{shown(low, unit, digits)} to {shown(high, unit, digits)}"


def signed(value: float | None, unit: str, digits: int = 0) -> str:
    """Return a difference with its sign."""
    text = shown(value, unit, digits)
    return f"+{text}" if value is not None and value > 0 and text.strip("0.") else text


def value_cell(value: float, low: float | None, high: float | None, unit: str, *, best: bool = False) -> TableCell:
    """Return a value with its interval."""
    return TableCell(value=shown(value, unit), interval=span(low, high, unit), best=best)


def difference_cell(value: float | None, low: float | None, high: float | None, unit: str, digits: int) -> TableCell:
    """Return a difference to the reference; the reference itself has none."""
    return TableCell(value=signed(value, unit, digits), interval=span(low, high, unit, digits))


def cost_cell(row: Row, *, higher: bool, currency: str) -> TableCell:
    """Return the cost of one unit more than the reference: device time, and the judge's money if it has a price.

    The interval is that of the time, from the interval of the difference. It has no upper end if there may be no gain.
    """
    hours, money = row["hours_per_point"], row["judge_cost_per_point"]
    if hours is None:
        return TableCell(value="–")
    judged = "" if money is None else f" + {fixed(money, max(2, digits_for(money)))} {currency}"
    low, high, interval = row["difference_low"], row["difference_high"], ""
    if low is not None and high is not None:
        whole = 3600 * hours * abs(row["difference"])
        least, most = (low, high) if higher else (-high, -low)
        interval = f"{duration(whole / most)} " + (f"to {duration(whole / least)}" if least > 0 else "or more")
    return TableCell(value=f"{duration(3600 * hours)}{judged}", interval=interval)


_DRAWS = 2000
"""Resamples for the interval of a single group: there are many groups, and rough intervals suffice."""
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, kw_only=True)
class ExperimentInputs:
    """The tables of an experiment.

    table: tables.EXPERIMENT.
    scores: tables.SCORES by benchmark and variant.
    reference: a line's name.
    turns: for benchmarks with several turns per question, the scores by turn, from 0.
    gate: None if there is none.
    rejected: tables.REJECTED by benchmark, of all variants.
    currency: of the judge's cost.
    """

    table: pl.DataFrame
    lines: Sequence[Line]
    scores: Mapping[str, Mapping[str, pl.DataFrame]]
    benchmarks: Mapping[str, Benchmark]
    reference: str
    turns: Mapping[str, Mapping[int, Mapping[str, pl.DataFrame]]] = field(default_factory=dict)
    gate: GateResult | None = None
    rejected: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    currency: str = ""

    @property
    def reseeded(self) -> list[str]:
        """Return the models that were trained with several seeds."""
        return [line.name for line in self.lines if len(line.variants) > 1]

    @cached_property
    def results(self) -> list[BenchmarkResult]:
        """Return one result per benchmark, in the table's order."""
        return [
            BenchmarkResult(
                chosen=self.benchmarks[name],
                rows=self.table.filter(benchmark=name),
                answered=answered(name, self.lines, self.scores[name]),
                reference=self.reference,
                turns={turn: answered(name, self.lines, each) for turn, each in self.turns.get(name, {}).items()},
                lines={line.name: line for line in self.lines},
                asked=frozenset(self._asked(name)),
                reasons=self.rejected[name]["reason"].to_list() if name in self.rejected else [],
            )
            for name in self.table["benchmark"].unique(maintain_order=True)
        ]

    def _asked(self, benchmark: str) -> Iterator[str]:
        """Yield every question that some model was asked, as far as its tables record it."""
        for table in self.scores[benchmark].values():
            yield from table["question_id"]
        if benchmark in self.rejected:
            yield from self.rejected[benchmark]["sample_id"]


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The models' standings within each group of questions.

    heading: of the groups.
    groups: their names, and how many questions each has.
    standings: [groups][models].
    """

    heading: str
    groups: Sequence[tuple[str, int]]
    standings: Sequence[Sequence[Standing]]

    def of(self, model: str) -> list[Standing]:
        """Return the standings of one model, group by group."""
        return [each for group in self.standings for each in group if each.name == model]


@dataclass(frozen=True, kw_only=True)
class BenchmarkResult:
    """The results of one benchmark.

    rows: its rows of tables.EXPERIMENT.
    turns: see ExperimentInputs.
    lines: by model.
    asked: ids of all questions.
    reasons: why some questions have no value from some model.
    """

    chosen: Benchmark
    rows: pl.DataFrame
    answered: AnsweredQuestions
    reference: str
    turns: Mapping[int, AnsweredQuestions]
    lines: Mapping[str, Line]
    asked: frozenset[str] = frozenset()
    reasons: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Return the benchmark's name."""
        return self.chosen.name

    @property
    def best(self) -> list[str]:
        """Return the models that are statistically tied with the best."""
        return self.rows.filter("best")["variant"].to_list()

    @property
    def missing(self) -> list[str]:
        """Return the models without a value."""
        return [name for name in self.lines if name not in self.rows["variant"]]

    @property
    def left_out(self) -> frozenset[str]:
        """Return the questions without a value from some model."""
        return self.asked - {*self.answered.questions["question_id"]}

    @property
    def usual_reason(self) -> str:
        """Return the most frequent reason; empty if none is known."""
        return Counter(self.reasons).most_common(1)[0][0] if self.reasons else ""

    @property
    def half_width(self) -> float | None:
        """Return the median half width of the intervals of differences to the reference; None if there are none."""
        rows = self.rows.drop_nulls(["difference_low", "difference_high"])
        return median((rows["difference_high"] - rows["difference_low"]) / 2) if rows.height else None

    @property
    def difference_digits(self) -> int:
        """Return the decimals of differences, enough to keep their intervals distinct."""
        return digits_for(self.half_width)

    @cached_property
    def groupings(self) -> list[Grouping]:
        """Return the groupings with several groups: the benchmark's own, its other ones, and by turn."""
        questions, by_id = self.answered.questions, self.chosen.groupings
        found = {self.chosen.groups: questions["group"].to_list()}
        found |= {heading: [of(name) for name in questions["question_id"]] for heading, of in by_id.items()}
        several = [self._grouping(heading, groups) for heading, groups in found.items() if len(set(groups)) > 1]
        if len(self.turns) > 1:
            groups = [(f"turn {turn + 1}", each.questions.height) for turn, each in self.turns.items()]
            standings = [self._standings(each) for each in self.turns.values()]
            several.append(Grouping(heading="turn", groups=groups, standings=standings))
        return several

    def _grouping(self, heading: str, groups: Sequence[str]) -> Grouping:
        names = sorted(set(groups), key=_natural)
        places = [[place for place, group in enumerate(groups) if group == name] for name in names]
        return Grouping(
            heading=heading,
            groups=[(name, len(own)) for name, own in zip(names, places, strict=True)],
            standings=[self._standings(self.answered.part(own)) for own in places],
        )

    def _standings(self, part: AnsweredQuestions) -> Sequence[Standing]:
        total = part.total(by_group=self.chosen.by_group)
        given = {"reference": self.reference, "higher": self.chosen.higher, "bounds": self.chosen.bounds}
        return compare(part.models, total, **given, draws=_DRAWS)

    @cached_property
    def against_chance(self) -> list[str]:
        """Return a sentence per model whose samples were chosen: does it differ from one with as much random data?

        Each sentence is one comparison, by its 95 % interval. Without a model of random samples there are none.
        """
        sentences = []
        for chance in (line for line in self.lines.values() if line.series == RANDOM):
            given = {"reference": chance.name, "higher": self.chosen.higher, "bounds": self.chosen.bounds}
            # All models say how far seeds spread, as in the table, so that both give the same intervals.
            standings = compare(self.answered.models, self.answered.total(by_group=self.chosen.by_group), **given)
            sentences += [
                _against_chance(standing.name, chance.name, standing.difference, self.chosen)
                for standing in standings
                if standing.difference is not None
                # The single run is left out: `variants.equal` does not apply to it, so its amount may differ.
                and self.lines[standing.name].series
                and self.lines[standing.name].amount == chance.amount
            ]
        return sentences

    @cached_property
    def remarks(self) -> list[str]:
        """Return the benchmark's note about each model, beside its total."""
        names = self.answered.questions["question_id"]
        found = {
            model.name: self.chosen.remark(dict(zip(names, model.values.mean(axis=0).tolist(), strict=True)))
            for model in self.answered.models
        }
        return [f"{name}: {remark}" for name, remark in found.items() if remark]

    @cached_property
    def outcomes(self) -> list[Outcomes]:
        """Return the outcomes per question against the reference."""
        return outcomes(self.answered.models, reference=self.reference, higher=self.chosen.higher)

    @cached_property
    def grid(self) -> pl.DataFrame | None:
        """Return `model`, `length`, `depth`, `value`, the means per cell of a haystack; None for other benchmarks."""
        cells = [self.chosen.cell(name) for name in self.answered.questions["question_id"]]
        places = [cell for cell in cells if cell is not None]
        if not places:
            return None
        columns = {"length": [length for length, _ in places], "depth": [depth for _, depth in places]}
        frames = [
            pl.DataFrame({**columns, "value": model.values.mean(axis=0)}).with_columns(model=pl.lit(model.name))
            for model in self.answered.models
        ]
        cells = pl.concat(frames).group_by("model", "length", "depth", maintain_order=True)
        return cells.agg(pl.col("value").mean())


def _against_chance(name: str, chance: str, difference: Interval, benchmark: Benchmark) -> str:
    low, high, unit = difference.low, difference.high, benchmark.unit
    digits = digits_for(None if low is None or high is None else (high - low) / 2)
    size = f"{signed(difference.value, unit, digits)} {unit_of_difference(unit)}".rstrip()
    if low is None or high is None:
        return f"{name} differs from {chance} by {size}; so few questions do not say how sure that is."
    interval = f"{size}, 95 % interval {signed(low, unit, digits)} to {signed(high, unit, digits)}"
    if low <= 0 <= high:
        return f"{name} is not told apart from {chance} at 95 % ({interval})."
    return f"{name} is {'better' if (low > 0) == benchmark.higher else 'worse'} than {chance} ({interval})."


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = [part for part in _NUMBERS.split(name) if part]
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def figure_name(kind: str, benchmark: str) -> str:
    """Return the name of a benchmark's figure: values, amounts, outcomes, groups or grid."""
    return f"experiment/{benchmark}: {kind}"


def experiment_figures(inputs: ExperimentInputs) -> dict[str, Drawing]:
    """Return plots by name; plots without data are absent."""
    from gateau_dagster.plots import Drawing

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
    from gateau_dagster.features.evaluation.statistics import experiment_plots as plots

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
        yield "amounts", figure, "values over the number of samples, one line per method"
    if result.outcomes:
        figure = plots.outcome_bars(result.outcomes, title=f"{title}: question by question", reference=reference)
        yield "outcomes", figure, f"shares of questions that each model answers better than {reference}, equally, worse"
    for grouping in [each for each in result.groupings if each.heading == "length"]:  # other groupings have no order
        values = [
            (model.name, [each.total.value for each in grouping.of(model.name)]) for model in result.answered.models
        ]
        names, heading = [name for name, _ in grouping.groups], grouping.heading
        figure = plots.by_group(names, values, title=f"{title}, by {heading}", heading=heading, unit=unit)
        yield "groups", figure, f"values by {heading}, one line per model; the table below holds the same"
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
