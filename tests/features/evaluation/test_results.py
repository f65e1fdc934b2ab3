"""The section about the experiment: what stands in it, and what is left out of it."""

from dataclasses import replace
from statistics import fmean

import polars as pl
import pytest

from gateau_dagster.features.evaluation.statistics.compare import compare
from gateau_dagster.features.evaluation.statistics.experiment import GateResult, Line
from gateau_dagster.features.evaluation.statistics.results import (
    ExperimentInputs,
    TableCell,
    amounts,
    cost_cell,
    digits_for,
    experiment_charts,
    experiment_figures,
    experiment_section,
    figure_name,
    from_floor,
    shown,
    signed,
)
from tests.features.evaluation.experiment_builders import LINES, chosen, experiment_scores, scores
from tests.features.report.builders import DEPTHS, LENGTHS, Page, experiment_inputs, inputs, inputs_of, page_of

GIVEN = experiment_inputs()


@pytest.fixture(scope="module")
def page() -> Page:
    return page_of(inputs(experiment=GIVEN), *(figure_name("values", name) for name in GIVEN.benchmarks))


def _text(given: ExperimentInputs) -> str:
    return page_of(inputs(experiment=given)).text("experiment")


def test_without_an_experiment_there_is_no_section() -> None:
    page = page_of(inputs())
    assert "experiment" not in page.text_of
    assert "#experiment" not in {attributes["href"] for attributes in page.attributes("a")}


def test_every_model_and_benchmark_has_its_row_and_its_figure(page: Page) -> None:
    text = page.text("experiment")
    assert all(text.count(line.name) >= 6 for line in LINES)
    assert all(each.title in text for each in GIVEN.benchmarks.values())
    assert len(page.attributes("img")) == 3
    assert "On A quiz, robust-0.1, robust-0.3 and robust-0.5 are not told apart from the best" in page.text("summary")


def test_each_selection_is_compared_with_as_much_random_data(page: Page) -> None:
    quiz = GIVEN.results[0]
    assert len(quiz.against_chance) == 3
    for amount, sentence in zip(("0.1", "0.3", "0.5"), quiz.against_chance, strict=True):
        values = {
            model.name: model.values.mean() for model in quiz.answered.models if model.name.endswith(f"-{amount}")
        }
        difference = values[f"robust-{amount}"] - values[f"random-{amount}"]
        assert sentence.startswith(
            f"robust-{amount} is better than random-{amount} (+{difference:.1f} points, 95 % interval +"
        )
        assert sentence in page.text("experiment")


def test_a_benchmark_s_remark_on_each_model_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    quiz = GIVEN.results[0]
    assert quiz.remarks == []
    monkeypatch.setattr(
        type(quiz.chosen), "remark", lambda _, values: f"{len(values)} answers, {fmean(values.values()):.6f}"
    )
    remarks = [
        f"{each.name}: {each.values.shape[1]} answers, {each.values.mean():.6f}" for each in quiz.answered.models
    ]
    assert replace(quiz).remarks == remarks
    text = _text(replace(GIVEN))
    assert all(remark in text for remark in remarks)


def test_the_sentence_has_the_interval_of_the_table() -> None:
    """Both estimate from all models how far seeds spread."""
    quiz = GIVEN.results[0]
    total = quiz.answered.total(by_group=quiz.chosen.by_group)
    standings = compare(quiz.answered.models, total, reference="random-0.3", bounds=quiz.chosen.bounds)
    (found,) = (each.difference for each in standings if each.name == "robust-0.3")
    assert found is not None and found.low is not None and found.high is not None
    digits = digits_for((found.high - found.low) / 2)
    interval = f"{signed(found.low, '%', digits)} to {signed(found.high, '%', digits)}"
    assert interval in quiz.against_chance[1]


def test_equal_models_are_not_told_apart_from_random_ones() -> None:
    quiz = GIVEN.results[0]
    random = {model.name: model for model in quiz.answered.models if model.name.startswith("random")}
    same = [
        replace(model, values=random[model.name.replace("robust", "random")].values[::-1])
        if model.name.startswith("robust")
        else model
        for model in quiz.answered.models
    ]
    sentences = replace(quiz, answered=replace(quiz.answered, models=same)).against_chance
    assert [sentence.split(" (")[0] for sentence in sentences] == [
        f"robust-{amount} is not told apart from random-{amount} at 95 %" for amount in ("0.1", "0.3", "0.5")
    ]


def test_the_single_run_is_not_compared_since_its_amount_may_differ() -> None:
    quiz = GIVEN.results[0]
    by_name = {model.name: model for model in quiz.answered.models}
    models = [replace(by_name["robust-0.5"], name="checkpoint"), replace(by_name["random-0.5"], name="random")]
    lines = {
        "checkpoint": Line(name="checkpoint", variants=()),
        "random": Line(name="random", variants=(), series="random"),
    }
    assert replace(quiz, lines=lines, answered=replace(quiz.answered, models=models)).against_chance == []


def test_all_that_is_not_told_apart_from_the_best_is_marked() -> None:
    overview = experiment_section(GIVEN).overview
    assert overview is not None
    for place, name in enumerate(GIVEN.benchmarks):
        rows = GIVEN.table.filter(benchmark=name)
        marked = [row.name for row in overview.rows if row.cells[place].best]
        assert marked == rows.filter("best")["variant"].to_list()
    assert [row.name for row in overview.rows if row.reference] == ["full"]


def test_one_benchmark_needs_no_overview() -> None:
    assert experiment_section(experiment_inputs(["losses"])).overview is None


def test_groups_are_those_of_the_benchmark_and_what_it_names_besides() -> None:
    quiz, haystack, _ = experiment_section(GIVEN).benchmarks
    assert [table.heading for table in quiz.groups] == [
        "group", "group, difference to full", "length", "length, difference to full",
    ]  # fmt: skip
    assert [name for name, _ in quiz.groups[0].columns] == ["code", "qa", "summaries", "total"]
    assert [quiz.groups[place].columns[-1] for place in (0, 1)] == [("total", "%"), ("total", "points")]
    assert [name for name, _ in quiz.groups[2].columns] == ["0–4k", "4–8k", "8k+", "total"]
    assert [name for name, _ in haystack.groups[0].columns] == [*map(str, LENGTHS), "total"]
    assert [row.name for row in quiz.groups[1].rows] == [line.name for line in LINES if line.name != "full"]


def test_a_group_s_values_are_means_over_its_questions_and_seeds() -> None:
    given = experiment_inputs(["quiz"])
    qa = [table.filter(group="qa")["value"].mean() for name, table in given.scores["quiz"].items() if "full" in name]
    cells = next(row.cells for row in experiment_section(given).benchmarks[0].groups[0].rows if row.name == "full")
    assert cells[1].value == f"{sum(qa) / 2:.1f}"  # type: ignore[arg-type]


def test_each_turn_has_a_column_that_is_compared_as_the_whole_is() -> None:
    whole = experiment_scores()
    first = {name: table.with_columns(pl.col("value") + 7) for name, table in whole.items()}
    second = {name: table.with_columns(pl.col("value") - 7) for name, table in whole.items()}
    given = replace(inputs_of({"quiz": chosen()}, {"quiz": whole}), turns={"quiz": {0: first, 1: second}})
    table, differences = experiment_section(given).benchmarks[0].groups[-2:]
    assert (table.heading, differences.heading) == ("turn", "turn, difference to full")
    assert [name for name, _ in table.columns] == ["turn 1", "turn 2", "total"]
    for row, difference in zip(table.rows[1:], differences.rows[1:], strict=False):
        one, two, total = (float(cell.value) for cell in row.cells)
        assert one - total == pytest.approx(7, abs=0.11) and total - two == pytest.approx(7, abs=0.11), row.name
        assert len({cell.value for cell in difference.cells}) == 1, "every turn differs as the whole does"


def test_only_models_of_several_seeds_say_what_a_seed_changes() -> None:
    single = [replace(line, variants=line.variants[:1]) for line in LINES]
    assert GIVEN.reseeded == [line.name for line in LINES if line.trained] and not replace(GIVEN, lines=single).reseeded


def test_a_model_without_values_is_named() -> None:
    found = experiment_scores()
    missing = {name: found[name] if "robust" in name or name == "base" else scores([]) for name in found}
    given = inputs_of({"quiz": chosen()}, {"quiz": missing}, reference="base")
    assert given.results[0].missing == ["full", "random-0.1", "random-0.3", "random-0.5"]


def test_without_its_reference_there_is_no_difference() -> None:
    given = inputs_of({"quiz": chosen()}, {"quiz": experiment_scores()}, reference="gone")
    part = experiment_section(given).benchmarks[0]
    assert [table.heading for table in part.groups] == ["group"]
    assert not any("outcomes" in name for name in experiment_figures(given))


@pytest.mark.parametrize(("verdict", "kind"), [("passed", "ok"), ("not excluded", "warn"), ("lost", "warn")])
def test_the_gate_s_verdict_is_shown(verdict: str, kind: str) -> None:
    given = replace(GIVEN, gate=GateResult(verdict=verdict, sentences=["one <b>loses</b>"]))  # type: ignore[arg-type]
    page = page_of(inputs(experiment=given))
    assert f"Gate: {verdict}." in page.text("experiment") and "one <b>loses</b>" in page.text("experiment")
    assert kind in {attributes.get("class") for attributes in page.attributes("div")}


def test_names_of_models_and_groups_are_shown_and_never_obeyed() -> None:
    evil = "<img src=x onerror=alert(1)>"
    lines = [Line(name=evil, variants=("one",)), Line(name="two", variants=("two",))]
    values = {"one": scores([1, 2, 3, 4], groups=(evil, "b")), "two": scores([2, 2, 4, 3], groups=(evil, "b"))}
    table = inputs_of({"quiz": chosen()}, {"quiz": experiment_scores()}).table.head(2)
    given = ExperimentInputs(
        table=table.with_columns(variant=pl.Series([evil, "two"]), best=pl.lit(True)),
        lines=lines,
        scores={"quiz": values},
        benchmarks={"quiz": chosen(title=evil)},
        reference="two",
    )
    page = page_of(inputs(experiment=given))
    assert evil in page.text("experiment")
    assert all((image["src"] or "").startswith("data:") for image in page.attributes("img"))


def test_figures_are_there_for_what_there_is() -> None:
    found: dict[str, set[str]] = {}
    for name in experiment_figures(GIVEN):
        benchmark, kind = name.removeprefix("experiment/").split(": ")
        found.setdefault(benchmark, set()).add(kind)
    always = {"values", "amounts", "outcomes"}
    assert found == {"quiz": {*always, "groups"}, "haystack": {*always, "grid"}, "losses": always}


def test_groups_that_are_lengths_are_drawn_in_their_order() -> None:
    scores = {"quiz": experiment_scores()}
    drawn, plain = (experiment_figures(inputs_of({"quiz": chosen(groups=name)}, scores)) for name in ("length", "set"))
    (axis,) = drawn[figure_name("groups", "quiz")][0].axes
    assert [text.get_text() for text in axis.get_xticklabels()] == ["code", "qa", "summaries"]
    assert figure_name("groups", "quiz") not in plain


def test_the_grid_has_the_mean_of_each_cell() -> None:
    result = GIVEN.results[1]
    assert result.grid is not None
    assert result.grid.height == len(LINES) * len(LENGTHS) * len(DEPTHS)
    cell = result.grid.filter(model="base", length=1000, depth=0.1)["value"].item()
    assert cell == GIVEN.scores["haystack"]["base"].filter(question_id="1000/0.1")["value"].item()


def test_only_what_comes_in_several_amounts_is_a_line() -> None:
    points = amounts(GIVEN.results[0])
    assert set(points["series"]) == {"", "robust", "random"}
    assert points.filter(series="robust")["samples"].to_list() == [1000, 3000, 5000]
    one = replace(GIVEN.results[0], rows=GIVEN.results[0].rows.filter(pl.col("variant") != "robust-0.3"))
    alone = replace(one, rows=one.rows.filter(pl.col("variant") != "robust-0.5"))
    assert set(amounts(alone)["series"]) == {"", "random"}


def test_figures_are_written_as_people_do() -> None:
    assert [from_floor(value, 20, "%") for value in (20, 100, 60)] == [0, 100, 50] and from_floor(3, 1, "points") == 2
    assert [shown(value, "%") for value in (61.24, None)] == ["61.2", "–"]
    assert [shown(value, "NLL") for value in (0.5, 2.0, 123.4)] == ["0.500", "2.000", "123.4"]
    assert [signed(value, "%") for value in (3.0, -3.0, 0.0, 0.01, None)] == ["+3.0", "−3.0", "0.0", "0.0", "–"]


def test_a_chart_a_benchmark_holds_every_model_s_value_with_its_interval() -> None:
    charts = {chart.name: chart.amounts for chart in experiment_charts(GIVEN)}
    assert [*charts] == ["quiz (%)", "haystack (share found)", "losses (NLL)"]
    rows = GIVEN.table.filter(benchmark="quiz")
    shown = [(each.name, each.value, each.low, each.high) for each in charts["quiz (%)"]]
    assert shown == rows.select("variant", "value", "low", "high").rows()
    assert [each.name for each in charts["quiz (%)"] if each.reference] == [GIVEN.reference]


def test_questions_that_count_for_no_model_are_told_of_with_their_reason() -> None:
    quiz = experiment_inputs(["quiz"])
    by_variant = dict(quiz.scores["quiz"])
    lost = by_variant["base"]["question_id"][0]
    by_variant["base"] = by_variant["base"].filter(pl.col("question_id") != lost)
    reasons = [(lost, "no judgment"), ("unanswered", "out of memory"), ("unanswered", "out of memory")]
    rejected = pl.DataFrame(reasons, schema=["sample_id", "reason"], orient="row")
    given = replace(quiz, scores={"quiz": by_variant}, rejected={"quiz": rejected})
    (result,) = given.results
    assert len(result.left_out) == 2 and result.usual_reason == "out of memory"
    assert "2 other questions count for no model" in _text(given) and "other question" not in _text(quiz)


def test_what_a_point_costs_is_time_and_money_with_the_interval_of_the_gain() -> None:
    row = {"hours_per_point": 0.5, "judge_cost_per_point": 0.0123, "difference": -2.0}
    sure = cost_cell({**row, "difference_low": -4.0, "difference_high": -1.0}, higher=False, currency="EUR")
    assert (sure.value, sure.interval) == ("30.0 min + 0.012 EUR", "15.0 min to 60.0 min")
    unsure = cost_cell({**row, "difference_low": -4.0, "difference_high": 1.0}, higher=False, currency="EUR")
    assert unsure.interval == "15.0 min or more"
    unknown = {**row, "judge_cost_per_point": None, "difference_low": None, "difference_high": None}
    assert cost_cell(unknown, higher=False, currency="") == TableCell(value="30.0 min")
    assert cost_cell({**row, "hours_per_point": None}, higher=False, currency="") == TableCell(value="–")


def test_intervals_of_small_differences_show_on_which_side_of_zero_they_are() -> None:
    table = GIVEN.table.with_columns(
        difference=pl.col("difference") / 1000,
        difference_low=pl.col("difference").abs() / 2000,
        difference_high=pl.col("difference").abs() / 500,
    )
    losses = next(
        each for each in experiment_section(replace(GIVEN, table=table)).benchmarks if each.result.name == "losses"
    )
    ends = [row.cells[1].interval.split(" to ") for row in losses.table.rows if not row.reference]
    assert ends and all(float(low) > 0 for low, _ in ends)
