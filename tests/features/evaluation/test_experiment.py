"""The table of the experiment against dictionaries and Python's means."""

from statistics import fmean
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.experiment import (
    Cost,
    GateResult,
    Line,
    answered,
    check_experiment,
    experiment_rows,
    gate,
    lines_of,
    mean_cost,
    reference_of,
)
from tests.features.evaluation.experiment_builders import LINES, chosen, experiment_scores, scores
from tests.kit.error_codes import refused
from tests.kit.project import configured

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


# Which losses the gate lets pass.


def _table(**differences: tuple[float | None, float | None, float | None]) -> pl.DataFrame:
    rows = [
        {
            "variant": name,
            "benchmark": "quiz",
            "value": 50.0,
            "difference": value,
            "difference_low": low,
            "difference_high": high,
        }
        for name, (value, low, high) in differences.items()
    ]
    schema = tables.schema(tables.EXPERIMENT)
    return pl.DataFrame(rows, schema={name: schema[name] for name in rows[0]})


DIFFERENCES = _table(
    base=(None, None, None), gain=(3.0, 1.0, 5.0), unsure=(-1.0, -4.0, 2.0), loss=(-6.0, -8.0, -4.0),
    small=(-1.0, -1.5, -0.5), few=(0.0, None, None),
)  # fmt: skip


def _gate(variant: str | None, margin: float = 2.0, higher: bool = True) -> GateResult:
    return gate(DIFFERENCES, benchmark="quiz", margin=margin, variant=variant, higher=higher, unit="%")


@pytest.mark.parametrize(
    ("variant", "margin", "verdict"),
    [
        ("gain", 2, "passed"),
        ("small", 2, "passed"),
        ("small", 1, "not excluded"),
        ("small", 0, "lost"),
        ("unsure", 2, "not excluded"),
        ("unsure", 4, "passed"),
        ("loss", 2, "lost"),
        ("loss", 4, "not excluded"),
        ("few", 2, "not excluded"),
        (None, 2, "lost"),
    ],
)
def test_a_loss_fails_where_it_is_sure_and_warns_where_it_is_not_excluded(
    variant: str | None, margin: float, verdict: str
) -> None:
    assert _gate(variant, margin).verdict == verdict


def test_where_less_is_better_a_rise_is_a_loss() -> None:
    assert _gate("gain", 0, higher=False).verdict == "lost"
    assert _gate("loss", 2, higher=False).verdict == "passed"


def test_every_model_has_its_sentence() -> None:
    found = _gate(None)
    assert [sentence.split()[0] for sentence in found.sentences] == ["gain", "unsure", "loss", "small", "few"]
    assert "loses 6 % on quiz (95 % interval of the loss: 4 % to 8 %): a loss above 2 % is sure." in found.sentences[2]


def test_a_model_that_was_not_measured_has_not_passed() -> None:
    table = _table(base=(None, None, None), good=(3.0, 1.0, 5.0))

    def of(variant: str | None) -> GateResult:
        return gate(table, benchmark="quiz", margin=2.0, variant=variant, unit="%", expected=("good", "bad"))

    found = of(None)
    assert found.verdict == "not excluded" and [each.split()[0] for each in found.sentences] == ["good", "bad"]
    assert "bad has no value by quiz" in found.sentences[1]
    assert of("bad").verdict == "not excluded" and of("good").verdict == "passed"
    with refused("evaluation.no_answers", r"evaluation\.gate\.variant"):
        of("nobody")


@pytest.mark.parametrize("variant", ["base", "nobody"])
def test_a_variant_that_is_not_set_against_the_reference_is_an_error(variant: str) -> None:
    with refused("evaluation.no_answers", r"evaluation\.gate\.variant"):
        _gate(variant)


def test_no_difference_at_all_is_an_error() -> None:
    with refused("evaluation.no_answers", r"evaluation\.gate\.benchmark"):
        gate(DIFFERENCES, benchmark="another", margin=1)


@pytest.mark.parametrize(
    ("margin", "said"),
    [(0.05, "loses 0.0002 NLL"), (0.5, "loses 0.000 NLL"), (0.0005, "loses 0.000200 NLL"), (0.0, "loses 0.000 NLL")],
)
def test_figures_have_the_digits_that_the_margin_needs(margin: float, said: str) -> None:
    table = _table(tiny=(-0.0002, -0.0009, 0.0005))
    (sentence,) = gate(table, benchmark="quiz", margin=margin, unit="NLL").sentences
    assert said in sentence and "e−" not in sentence


# Which variants are one row, and what a configuration may say of them.


MATRIX: dict[str, Any] = {
    "methods": ["gateau", "random"],
    "presets": ["robust"],
    "fractions": [0.1, 0.5],
    "seeds": [0, 1],
    "also": ["full", {"name": "theirs", "path": "a/theirs"}],
}


def test_seeds_are_one_row_and_amounts_of_one_choice_one_series() -> None:
    found = {line.name: line for line in lines_of(configured(variants=MATRIX))}
    names = ["robust-0.1", "robust-0.5", "random-0.1", "random-0.5"]
    assert [*found] == ["base", "checkpoint", *names, "full", "theirs"]
    assert found["robust-0.1"].variants == ("robust-0.1-s0", "robust-0.1-s1")
    assert {name: line.series for name, line in found.items() if line.series} == {
        name: name.split("-")[0] for name in names
    }
    assert {name for name, line in found.items() if not line.trained} == {"base", "theirs"}


def test_a_single_seed_keeps_the_variant_s_name() -> None:
    one = configured(variants={"methods": ["gateau"], "fractions": [0.1], "seeds": [3]})
    assert [line.name for line in lines_of(one)] == ["base", "checkpoint", "gateau-0.1-s3"]
    assert [line.name for line in lines_of(configured())] == ["base", "checkpoint"]


@pytest.mark.parametrize("name", ["full", "full-s1"])
def test_a_reference_is_named_by_its_row_or_by_a_variant(name: str) -> None:
    config = configured(variants=MATRIX, evaluation={"reference": name})
    check_experiment(config)
    assert reference_of(config) == "full"
    assert reference_of(configured(variants=MATRIX)) == "base"


def test_without_an_experiment_nothing_is_asked_for() -> None:
    check_experiment(configured())
    assert scored_benchmarks(configured()) == {}
