"""The experiment over the questions that do not stand in the data."""

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.evaluation.contamination import OVERLAPS, UNTOUCHED, untouched_rows
from gateau_dagster.evaluation.statistics.experiment import Cost, Line, experiment_rows
from tests.evaluation.statistics.builders import chosen, scores

LINES = [Line(name="base", variants=("base",), trained=False), Line(name="full", variants=("full",))]
COSTS = {line.name: Cost() for line in LINES}


def overlaps_with(*questions: str) -> pl.DataFrame:
    rows = [("s1", question, 50, 0.9, 0.0) for question in questions]
    return pl.DataFrame(rows, schema=tables.schema(OVERLAPS), orient="row")


def test_what_a_model_knew_by_heart_no_longer_counts() -> None:
    """The first five questions stand in the data, and full knows them all; of the others it knows what base knows."""
    known = [float(40 + number % 3) for number in range(25)]
    values = {"base": scores([0.0] * 5 + known), "full": scores([100.0] * 5 + known)}
    whole = experiment_rows(chosen(), LINES, values, COSTS, reference="base")
    found = untouched_rows(
        chosen(), LINES, values, COSTS, overlaps_with(*(f"q{number:04d}" for number in range(5))), reference="base"
    )
    assert found.schema == tables.schema(UNTOUCHED)
    assert whole["questions"].to_list() == [30, 30] and found["questions"].to_list() == [25, 25]
    assert whole["difference"].to_list() == [None, pytest.approx(500 / 30)]
    assert found["difference"].to_list() == [None, 0.0] and found["touched"].to_list() == [5, 5]


def test_without_overlaps_it_is_the_experiment() -> None:
    values = {"base": scores([1.0, 2.0, 3.0]), "full": scores([2.0, 2.0, 3.0])}
    found = untouched_rows(chosen(), LINES, values, COSTS, overlaps_with(), reference="base")
    assert found.drop("touched").equals(experiment_rows(chosen(), LINES, values, COSTS, reference="base"))
    assert found["touched"].to_list() == [0, 0]


def test_where_every_question_is_touched_there_is_no_value() -> None:
    values = {"base": scores([1.0, 2.0]), "full": scores([2.0, 2.0])}
    found = untouched_rows(chosen(), LINES, values, COSTS, overlaps_with("q0000", "q0001"), reference="base")
    assert found.is_empty() and found.schema == tables.schema(UNTOUCHED)
