"""Only complete checkpoints of this very training count."""

import shutil
from pathlib import Path

import pytest

from gateau_dagster.training.checkpoints import (
    complete_checkpoints,
    discard_all,
    last_checkpoint,
    mark_complete,
    prepare_work,
    step_of,
)


def checkpoint(work: Path, step: int) -> Path:
    folder = work / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("x")
    return folder


def test_two_complete_ones_are_kept_in_order_of_steps(tmp_path: Path) -> None:
    for step in (5, 10, 100):
        mark_complete(checkpoint(tmp_path, step))
    unfinished = checkpoint(tmp_path, 105)
    assert [step_of(folder) for folder in complete_checkpoints(tmp_path)] == [10, 100]
    assert not (tmp_path / "checkpoint-5").exists()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    mark_complete(unfinished)
    assert last_checkpoint(tmp_path) == unfinished
    discard_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_prepare_removes_what_is_incomplete(tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert prepare_work(work, "key") is None
    mark_complete(checkpoint(work, 5))
    checkpoint(work, 10)
    assert prepare_work(work, "key") == work / "checkpoint-5"
    assert not (work / "checkpoint-10").exists()


def test_prepare_empties_the_folder_of_another_training(tmp_path: Path) -> None:
    prepare_work(tmp_path / "work", "key")
    mark_complete(checkpoint(tmp_path / "work", 5))
    (tmp_path / "work" / "metrics.jsonl").write_text("{}")
    assert prepare_work(tmp_path / "work", "another key") is None
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["resume_key"]


@pytest.mark.parametrize("discard", ["the oldest", "all"])
def test_a_checkpoint_half_removed_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discard: str
) -> None:
    for step in (5, 10):
        mark_complete(checkpoint(tmp_path, step))
    last = checkpoint(tmp_path, 15)

    def killed(folder: Path) -> None:
        (folder / "weights").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        mark_complete(last) if discard == "the oldest" else discard_all(tmp_path)
    halves = [folder for folder in tmp_path.iterdir() if not (folder / "weights").exists()]
    assert len(halves) == 1
    assert not set(halves) & set(complete_checkpoints(tmp_path))
    assert discard == "all" or complete_checkpoints(tmp_path) == [tmp_path / "checkpoint-10", last]
