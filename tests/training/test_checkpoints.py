"""Only complete checkpoints of this very training count."""

from pathlib import Path

from gateau_dagster.training.checkpoints import (
    MARKER,
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


def test_a_checkpoint_half_removed_does_not_look_complete(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 5)
    mark_complete(folder)
    (folder / "weights").unlink()
    (folder / MARKER).unlink()  # what a kill leaves: the marker goes first, whatever remains is discarded
    assert last_checkpoint(tmp_path) is None
