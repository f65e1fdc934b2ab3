"""The table of the experiment against dictionaries and Python's means."""

from statistics import fmean

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.statistics.experiment import Cost, Line, answered, experiment_rows, mean_cost
from tests.error_codes import refused
from tests.evaluation.statistics.builders import LINES, chosen, experiment_scores, scores

SCORES = experiment_scores()
COSTS = {
    name: Cost(samples=100 + place, tokens=1000, scoring_hours=2.0, training_hours=float(place), judge_cost=None)
    for place, name in enumerate(SCORES)
}
TABLE = experiment_rows(chosen(), LINES, SCORES, COSTS, reference="full", draws=500)


def _rows(table: pl.DataFrame = TABLE) -> dict[str, dict]:
    return {row["variant"]: row for row in table.iter_rows(named=True)}


def _slow_total(name: str) -> float:
    rows = list(SCORES[name].iter_rows(named=True))
    means = [fmean(row["value"] for row in rows if row["group"] == group) for group in {row["group"] for row in rows}]
    return fmean(means)


def test_it_is_the_promised_table_with_a_row_a_model() -> None:
    assert dict(TABLE.schema) == dict(tables.schema(tables.EXPERIMENT))
    assert TABLE["variant"].to_list() == [line.name for line in LINES]
    assert set(TABLE["benchmark"]) == {"quiz"} and set(TABLE["questions"]) == {120}
    assert {name: row["seeds"] for name, row in _rows().items()} == {line.name: len(line.variants) for line in LINES}


def test_values_are_means_over_seeds_of_means_over_groups() -> None:
    rows = _rows()
    for line in LINES:
        assert rows[line.name]["value"] == pytest.approx(fmean(_slow_total(name) for name in line.variants))
        assert rows[line.name]["low"] < rows[line.name]["value"] < rows[line.name]["high"]


def test_differences_are_to_the_reference_which_has_none() -> None:
    rows = _rows()
    assert rows["full"]["difference"] is None and rows["full"]["difference_low"] is None
    apart = rows["base"]["value"] - rows["full"]["value"]
    assert rows["base"]["difference"] == pytest.approx(apart)
    assert rows["base"]["difference_low"] < apart < rows["base"]["difference_high"] < 0


def test_costs_are_means_over_seeds_and_hours_count_by_what_is_gained() -> None:
    row = _rows()["robust-0.5"]
    costs = [COSTS[name] for name in ("robust-0.5-s0", "robust-0.5-s1")]
    assert row["training_hours"] == fmean(cost.training_hours or 0 for cost in costs)
    assert row["samples"] == round(fmean(cost.samples or 0 for cost in costs))
    assert row["hours_per_point"] == pytest.approx((2 + row["training_hours"]) / row["difference"])
    assert row["judge_cost"] is None
    assert _rows()["base"]["hours_per_point"] is None  # it loses


def test_where_less_is_better_a_loss_is_a_gain() -> None:
    rows = _rows(experiment_rows(chosen(higher=False), LINES, SCORES, COSTS, reference="full", draws=50))
    assert rows["base"]["best"] and not rows["robust-0.5"]["best"]
    assert rows["base"]["hours_per_point"] == pytest.approx(2 / -rows["base"]["difference"])


def test_what_one_seed_does_not_know_is_not_known() -> None:
    assert mean_cost([Cost(samples=3), Cost(samples=4, tokens=5)]) == Cost(samples=4)


def _two(**values: pl.DataFrame) -> tuple[list[Line], dict[str, pl.DataFrame]]:
    return [Line(name=name, variants=(name,)) for name in values], values


def test_only_questions_that_all_variants_answered_are_compared() -> None:
    lines, values = _two(one=scores([1, 2, 3, 4]), two=scores([7, 8, 9], first=2).sample(fraction=1.0, shuffle=True))
    found = answered("quiz", lines, values)
    assert found.questions["question_id"].to_list() == ["q0002", "q0003"]
    assert [model.values.tolist() for model in found.models] == [[[3, 4]], [[7, 8]]]


def test_a_model_without_any_value_is_left_out() -> None:
    lines, values = _two(one=scores([1, 2]), none=scores([]))
    table = experiment_rows(chosen(), lines, values, {"one": Cost(), "none": Cost()}, reference="none", draws=20)
    assert table["variant"].to_list() == ["one"] and table["difference"].to_list() == [None]


def test_nothing_in_common_is_an_error_and_so_is_what_is_no_number() -> None:
    for second in (scores([1, 2], first=9), scores([1.0, float("nan")])):
        lines, values = _two(one=scores([1, 2]), two=second)
        with pytest.raises(GateauError, match="quiz"):
            answered("quiz", lines, values)
    lines, values = _two(one=scores([]), two=scores([]))
    with refused("evaluation.no_answers", "scores/quiz.*'I.*it'"):
        experiment_rows(chosen(), lines, values, {}, reference="one", reasons=["a reply ends with 'I like it'", "b"])
