"""The figures of an experiment, by their names in the page and in Dagster."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from gateau_dagster.evaluation.page import PageAmount, PageChart
from gateau_dagster.readable import plural
from gateau_dagster.report.experiment import BenchmarkResult, ExperimentInputs
from gateau_dagster.report.experiment_text import amounts
from gateau_dagster.report.plots import experiment_plots as plots

KINDS = ("values", "amounts", "outcomes", "groups", "grid")


def figure_name(kind: str, benchmark: str) -> str:
    """Of a benchmark's figure of one of KINDS."""
    return f"experiment/{benchmark}: {kind}"


def experiment_figures(inputs: ExperimentInputs) -> dict[str, tuple[Figure, str]]:
    """Plots by name, each with what it shows; those that a benchmark has nothing for are absent."""
    found = {}
    for result in inputs.results:
        for kind, figure, alt in _of_benchmark(result):
            found[figure_name(kind, result.name)] = figure, f"{result.chosen.benchmark.title}: {alt}"
    return found


def experiment_charts(inputs: ExperimentInputs) -> Iterator[PageChart]:
    """The models' values with their intervals, a chart a benchmark."""
    for result in inputs.results:
        amounts = [
            PageAmount(name=name, value=value, low=low, high=high, reference=name == result.reference)
            for name, value, low, high in result.rows.select("variant", "value", "low", "high").iter_rows()
        ]
        yield PageChart(name=f"{result.name} ({result.chosen.scored.unit})", amounts=amounts)


def _of_benchmark(result: BenchmarkResult) -> Iterator[tuple[str, Figure, str]]:
    title, reference = result.chosen.benchmark.title, result.reference
    unit, bounds = result.chosen.scored.unit, result.chosen.scored.bounds
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
    for grouping in [each for each in result.groupings if each.heading == "length"]:  # others stand in no order
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
