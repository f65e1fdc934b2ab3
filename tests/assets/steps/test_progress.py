"""Progress of a step: a readable line, and boards that are taken down when their run has ended."""

from pathlib import Path

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus

from assets.steps.progress import board_of, progress_line, remove_old_boards
from gateau_dagster.pipeline.project import load_project
from tests.project import make_project


def test_the_line() -> None:
    assert progress_line(12, 63, "samples", "", 4.0) == "12/63 samples (19%), 3.0 samples/s, 17 s left"
    assert progress_line(5, None, "files", "a.jsonl", 2.0) == "5 files, 2.5 files/s, a.jsonl"
    known = progress_line(12, 63, "samples", "1.5 samples/s, shard 1", 4.0, left=30.0)
    assert known == "12/63 samples (19%), 30 s left, 1.5 samples/s, shard 1"
    assert progress_line(0, 10, "samples", "", 0.0) == "0/10 samples (0%), 0.0 samples/s"


@dg.job
def empty_job() -> None:
    """Nothing."""


def test_only_boards_of_runs_that_ended_are_removed(tmp_path: Path) -> None:
    """A run started in the UI may be at work while `gateau run` starts; its step must not lose its board."""
    config = load_project(make_project(tmp_path, samples=2, shards=1))
    with DagsterInstance.ephemeral() as instance:
        alive, ended = (
            instance.create_run_for_job(empty_job, status=status).run_id
            for status in (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE)
        )
        for run_id in (alive, ended, "unknown"):
            with board_of(config, run_id).step("cam") as progress:
                progress(1, 2, "samples")
        remove_old_boards(config, instance)
    assert [folder.name for folder in (tmp_path / ".gateau" / "progress").iterdir()] == [alive]
    assert [entry.step for entry in board_of(config, alive).entries()] == ["cam"]
