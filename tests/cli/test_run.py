"""What `gateau run` says of the samples that are known to need far context: the figures of the page."""

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from gateau_dagster.cli.run import _show_ground_truth
from gateau_dagster.features.report.build import truth
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.kit.project import configured

IDS = ["a", "b", "c", "d", "e", "f"]
SOURCES = ["far", "near", "far", "near", "far", "near"]
IFD = [0.9, 0.5, None, None, 0.4, 0.6]  # c and d have no score, and are the last
IFD_AUROC = (3 + 0.5 + 1) / 9  # pairs in order: a 3; c ties with d; e is above d
PRESETS = {"paper": [6, 5, 4, 3, 2, 1], "official": [1, 2, 3, 4, 5, 6], "robust": [9, 1, 8, 2, 7, 3]}


def opened(folder: Path, method: str, **selection: Any) -> State:
    """A store with the scores of ifd and of the presets."""
    config = configured(
        storage={"root": "store"},
        long_sft={"path": "long.jsonl", "shards": 1},
        selection={"method": method, "ground_truth": ["far"], **selection},
        training={"enabled": False},
        folder=folder,
    )
    state = state_of(config=config)
    state.__dict__["model_digests"] = {"short": "1", "long": "2"}
    ids = pl.DataFrame({"sample_id": IDS})
    tables = {
        ("raw_long_sft", "0"): ids.with_columns(source=pl.Series(SOURCES), context=pl.lit("c"), response=pl.lit("r")),
        ("combined_scores", None): ids.with_columns(
            **{f"score_{name}": pl.Series(values, dtype=pl.Float64) for name, values in PRESETS.items()}
        ),
        ("method_scores/ifd", "0"): ids.with_columns(score=pl.Series(IFD)),
    }
    for (asset, part), table in tables.items():
        state.store.write(table, asset, part, Stamp(fingerprint="f"))
    return state


def said(state: State) -> str:
    out = io.StringIO()
    _show_ground_truth(Console(file=out, width=1000), state, state.pipeline.by_key)
    return out.getvalue()


def test_the_method_s_figure_is_that_of_the_page(tmp_path: Path) -> None:
    state = opened(tmp_path, "ifd")
    assert said(state) == (
        f"Samples that need far context (far), AUROC by method: ifd {IFD_AUROC:.3f} (selects). 0.5 is chance.\n"
    )
    page = truth(
        ReportInputs(
            config=state.config,
            raw=state.store.read("raw_long_sft", "0"),
            method_scores=state.store.read("method_scores/ifd", "0"),
            selected_subset=pl.DataFrame({"sample_id": ["a"]}),
            generated_at=datetime(2026, 1, 2, tzinfo=UTC),
        ),
        None,
    )
    assert page is not None and page.auroc == pytest.approx(IFD_AUROC)


def test_the_deciding_method_stands_beside_the_presets_and_is_marked(tmp_path: Path) -> None:
    presets = "AUROC by preset: paper 0.667, official 0.333, robust 1.000"
    assert f"{presets}; by method: ifd {IFD_AUROC:.3f} (selects). 0.5" in said(
        opened(tmp_path, "ifd", compare=["gateau"])
    )
    assert f"{presets} (selects). 0.5 is chance." in said(opened(tmp_path, "gateau"))
    assert "official 0.333 (selects), robust 1.000. 0.5" in said(opened(tmp_path, "gateau", preset="official"))


@pytest.mark.parametrize("known", [[], ["no such source"], ["far", "near"]])
def test_without_a_ground_truth_that_tells_samples_apart_nothing_is_said(tmp_path: Path, known: list[str]) -> None:
    assert said(opened(tmp_path, "ifd", ground_truth=known)) == ""


def test_a_table_that_is_not_made_is_left_out(tmp_path: Path) -> None:
    state = opened(tmp_path, "ifd", compare=["gateau"])
    (tmp_path / "store" / "combined_scores.parquet").unlink()
    assert "preset" not in said(state) and "by method: ifd" in said(state)
