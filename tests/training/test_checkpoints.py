"""Only complete checkpoints of this very training count, and only as they were written."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gateau_dagster.training.checkpoints import (
    complete_checkpoints,
    damaged_files,
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
        mark_complete(checkpoint(tmp_path, step), "key")
    unfinished = checkpoint(tmp_path, 105)
    assert [step_of(folder) for folder in complete_checkpoints(tmp_path)] == [10, 100]
    assert not (tmp_path / "checkpoint-5").exists()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    mark_complete(unfinished, "key")
    assert last_checkpoint(tmp_path) == unfinished
    discard_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_prepare_removes_what_is_incomplete(tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert prepare_work(work, "key") is None
    mark_complete(checkpoint(work, 5), "key")
    checkpoint(work, 10)
    assert prepare_work(work, "key") == work / "checkpoint-5"
    assert not (work / "checkpoint-10").exists()


def test_prepare_empties_the_folder_of_another_training(tmp_path: Path) -> None:
    said: list[str] = []
    prepare_work(tmp_path / "work", "key", said.append)
    assert prepare_work(tmp_path / "work", "second key", said.append) is None and not said, "there was nothing to lose"
    mark_complete(checkpoint(tmp_path / "work", 5), "second key")
    (tmp_path / "work" / "metrics.jsonl").write_text("{}")
    assert prepare_work(tmp_path / "work", "another key", said.append) is None
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["resume_key"]
    assert len(said) == 1 and "work has 1 checkpoint of a training with other samples or settings; removed" in said[0]


@pytest.mark.parametrize("content", [b"kez", b"ke\xf9", b"", None])
def test_a_damaged_key_costs_no_checkpoint(tmp_path: Path, content: bytes | None) -> None:
    said: list[str] = []
    prepare_work(tmp_path, "key", said.append)
    checkpoint(tmp_path, 3)
    mark_complete(checkpoint(tmp_path, 5), "of an older training")
    mark_complete(checkpoint(tmp_path, 10), "key")
    (tmp_path / "resume_key").unlink() if content is None else (tmp_path / "resume_key").write_bytes(content)
    assert prepare_work(tmp_path, "key", said.append) == tmp_path / "checkpoint-10"
    assert len(said) == 1 and "resume_key is damaged or missing" in said[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "resume_key"]
    assert prepare_work(tmp_path, "key", said.append) == tmp_path / "checkpoint-10" and len(said) == 1


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: flip(folder / "weights"),
    "global_step/optimizer": lambda folder: (folder / "global_step" / "optimizer").unlink(),
    "another": lambda folder: (folder / "another").touch(),
    "COMPLETE": lambda folder: os.truncate(folder / "COMPLETE", 10),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_it_is_taken(tmp_path: Path, name: str) -> None:
    prepare_work(tmp_path, "key")
    for step in (5, 10):
        folder = checkpoint(tmp_path, step)
        (folder / "global_step").mkdir()
        (folder / "global_step" / "optimizer").write_bytes(bytes(1000))
        mark_complete(folder, "key")
    said: list[str] = []
    assert prepare_work(tmp_path, "key", said.append) == tmp_path / "checkpoint-10" and not said
    DAMAGES[name](tmp_path / "checkpoint-10")
    assert prepare_work(tmp_path, "key", said.append) == tmp_path / "checkpoint-5"
    assert len(said) == 1 and "checkpoint-10 is damaged" in said[0] and name in said[0]
    assert not (tmp_path / "checkpoint-10").exists()
    DAMAGES[name](tmp_path / "checkpoint-5")
    assert prepare_work(tmp_path, "key", said.append) is None and len(said) == 2


def test_no_flipped_bit_of_a_marker_is_taken_for_the_truth(tmp_path: Path) -> None:
    mark_complete(checkpoint(tmp_path, 5), "key")
    marker = tmp_path / "checkpoint-5" / "COMPLETE"
    whole = marker.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        marker.write_bytes(data)
        if damaged_files(marker.parent) == []:
            assert json.loads(data) == json.loads(whole), "white space"


@pytest.mark.parametrize("content", [b"", b"0", b"[1]", b"[[1]]", b"null", b'"text"', b"{", b"\xff", b"[" * 100_000])
def test_a_marker_of_another_kind_is_damage(tmp_path: Path, content: bytes) -> None:
    mark_complete(checkpoint(tmp_path, 5), "key")
    (tmp_path / "checkpoint-5" / "COMPLETE").write_bytes(content)
    assert damaged_files(tmp_path / "checkpoint-5")


@pytest.mark.parametrize("discard", ["the oldest", "all"])
def test_a_checkpoint_half_removed_does_not_look_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, discard: str
) -> None:
    for step in (5, 10):
        mark_complete(checkpoint(tmp_path, step), "key")
    last = checkpoint(tmp_path, 15)

    def killed(folder: Path) -> None:
        (folder / "weights").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        mark_complete(last, "key") if discard == "the oldest" else discard_all(tmp_path)
    halves = [folder for folder in tmp_path.iterdir() if not (folder / "weights").exists()]
    assert len(halves) == 1
    assert not set(halves) & set(complete_checkpoints(tmp_path))
    assert discard == "all" or complete_checkpoints(tmp_path) == [tmp_path / "checkpoint-10", last]
