"""A selection that holds fewer samples than its count says so."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.pipeline.losses import unfilled
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.project import make_project


@pytest.mark.parametrize(("count", "said"), [(3, ""), (5000, "3 samples are chosen of 5,000 that selection.count")])
def test_a_count_above_the_samples_is_said(count: int, said: str, tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=8, shards=2, selection={"fraction": None, "count": count})
    state = State(config=load_project(file))
    rows = {"sample_id": [f"s{number}" for number in range(3)]}
    chosen = pl.DataFrame(schema=tables.schema(tables.SELECTED_SUBSET))
    state.store.write(pl.concat([chosen, pl.DataFrame(rows)], how="diagonal"), CHOSEN, None, Stamp(fingerprint="x"))
    assert unfilled(state).startswith(said) and bool(unfilled(state)) == bool(said)
    assert [line for line in state.warnings if "selection.count" in line] == (
        [f"selection.count asks for {count:,} samples, and there are 8: no more can be chosen."] if said else []
    )
