"""Evaluate the experiment over the questions that do not occur in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from gateau_dagster import tables
from gateau_dagster.evaluation.contamination.touched import without_touched
from gateau_dagster.evaluation.registry import ChosenBenchmark
from gateau_dagster.evaluation.statistics.experiment import Cost, experiment_rows
from gateau_dagster.evaluation.statistics.lines import Line

UNTOUCHED = (
    *tables.EXPERIMENT,
    tables.Column(
        name="touched", dtype=pl.Int32(), description="Questions that stand in the data, and are left out here."
    ),
)


def untouched_rows(
    chosen: ChosenBenchmark,
    lines: Sequence[Line],
    scores: Mapping[str, pl.DataFrame],
    costs: Mapping[str, Cost],
    contamination: pl.DataFrame,
    *,
    reference: str,
) -> pl.DataFrame:
    """Return UNTOUCHED for one benchmark, one row per model; no rows where all questions are touched.

    contamination: OVERLAPS of all the data, so that all models are measured on the same questions. The other arguments
    and the errors are those of experiment_rows.
    """
    left = {name: without_touched(table, contamination) for name, table in scores.items()}
    if all(table.is_empty() for table in left.values()):
        return pl.DataFrame(schema=tables.schema(UNTOUCHED))
    rows = experiment_rows(chosen, lines, left, costs, reference=reference)
    touched = _questions(scores) - _questions(left)
    return rows.with_columns(touched=pl.lit(touched, dtype=pl.Int32))


def _questions(scores: Mapping[str, pl.DataFrame]) -> int:
    """Return how many different questions have a value."""
    return pl.concat([table["question_id"] for table in scores.values()]).n_unique()
