"""Plan stores of earlier commits: what they scored is not scored again."""

import shutil
import tarfile
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import gateau

FOLDER = Path(__file__).parent
# What may be stale in the store of a commit, since the code after it reads or chooses differently. All tables that a
# model computes from samples are absent from these lists.
STALE: dict[str, set[str]] = {
    "20d4756": {"report"},
    "ee5b479": {
        *("short_chat_mix", "selected_subset", "comparison", "training_mix", "checkpoint", "experiment", "report"),
        *("evaluation/heldout", "evaluation/needle", "scores/heldout", "scores/needle"),
        *("variant/selected_subset", "variant/training_mix", "variant/checkpoint"),
    },
}


@pytest.mark.parametrize("commit", [*STALE])
def test_nothing_is_scored_again(commit: str, tmp_path: Path) -> None:
    with tarfile.open(FOLDER / f"{commit}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    state = state_of(config=load_project(tmp_path / "golden" / "gateau.yaml"))
    assert {work.asset for work in state.plan_until(None).work} == STALE[commit]
    scored = {asset for asset in state.pipeline.required if "raw_long_sft" in state.pipeline.ancestors([asset])}
    assert {"perplexity/short", "perplexity/long", "cam", "method_scores/ladm"} <= scored - STALE[commit]


@pytest.mark.long
def test_a_recompute_gives_the_same_tables(tmp_path: Path) -> None:
    """Equal to float32's rounding: another number of threads adds in another order. On one machine bits are equal."""
    with tarfile.open(FOLDER / "20d4756.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    project = tmp_path / "golden"
    before = shutil.move(project / "store", tmp_path / "before")
    gateau("run", "--until", "combined_scores", folder=project)
    names = [
        f"{table}/{shard}" for table in ("raw_long_sft", "perplexity/short", "perplexity/long", "cam") for shard in "01"
    ]
    for name in (*names, "combined_scores"):
        found, wanted = (pl.read_parquet(store / f"{name}.parquet") for store in (project / "store", Path(before)))
        assert_frame_equal(found.select(wanted.columns), wanted, rel_tol=1e-4, abs_tol=1e-6)


def test_every_archive_is_read() -> None:
    assert {file.name.removesuffix(".tar.xz") for file in FOLDER.glob("*.tar.xz")} == {*STALE}
