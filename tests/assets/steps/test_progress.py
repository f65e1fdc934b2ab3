"""Boards of progress are taken down when their run has ended."""

from pathlib import Path

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus

from assets.steps.progress import board_of, remove_old_boards
from gateau_dagster.pipeline.project import load_project
from tests.project import make_project


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
