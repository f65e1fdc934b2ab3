"""Only complete checkpoints of this very training count, and only as they were written."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from transformers import TrainerControl, TrainerState, TrainingArguments

from gateau_dagster.errors import GateauError
from gateau_dagster.resources import training_process
from gateau_dagster.training.checkpoints import (
    complete_checkpoints,
    damaged_files,
    discard_all,
    last_checkpoint,
    mark_complete,
    prepare_work,
    saving,
    step_of,
)
from gateau_dagster.training.launch import TrainingSpec, failure_message, is_finished
from gateau_dagster.training.metrics import rewind_log
from gateau_dagster.training.trainer import TrainingCallback
from tests.kit.error_codes import refused
from tests.storage.builders import flipped, mounted_disk
from tests.training.builders import log_of, make_spec


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


def test_prepare_removes_what_is_incomplete_and_empties_the_folder_of_another_training(tmp_path: Path) -> None:
    work, said = tmp_path / "work", list[str]()
    assert prepare_work(work, "key", said.append) is None
    assert prepare_work(work, "second key", said.append) is None and not said, "there was nothing to lose"
    mark_complete(checkpoint(work, 5), "second key")
    checkpoint(work, 10)
    assert prepare_work(work, "second key", said.append) == work / "checkpoint-5"
    assert not (work / "checkpoint-10").exists() and not said
    (work / "metrics.jsonl").write_text("{}")
    assert prepare_work(work, "another key", said.append) is None
    assert [path.name for path in work.iterdir()] == ["resume_key"]
    assert len(said) == 1 and "work has 1 checkpoint of a run with other samples or settings; removed" in said[0]


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


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: (folder / "weights").write_bytes(flipped((folder / "weights").read_bytes(), 0)),
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
        data = flipped(whole, bit)
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With room for one checkpoint of these trainings, which has 500 KiB."""
    with mounted_disk(tmp_path / "disk", "800k") as folder:
        yield folder


@contextmanager
def no_writing() -> Iterator[None]:
    """A file may be opened and cut to nothing, but not a byte can be written: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run(spec: TrainingSpec, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """The message that Dagster shows of this attempt, "" when it succeeds."""
    monkeypatch.setattr(training_process, "signal", type("Signals", (), {"signal": lambda *_: None, "SIGTERM": 15}))
    spec.save(folder / "spec.json")
    status = training_process.main([str(folder / "spec.json")])
    return failure_message(spec, status) if status else ""


def test_a_disk_that_is_really_full(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(
        make_spec(tmp_path, max_steps=5, save_steps=2), output=small_disk / "model", work=small_disk / "work"
    )
    assert "a checkpoint could not be written to" in run(spec, monkeypatch, tmp_path)
    assert last_checkpoint(spec.work) == spec.work / "checkpoint-2"
    assert not (spec.work / "checkpoint-4").exists()

    spec.failure.unlink()
    with pytest.raises(OSError, match="No space left"), (small_disk / "fill").open("wb", buffering=0) as fill:
        while True:
            fill.write(bytes(4096))
    message = run(spec, monkeypatch, tmp_path)  # neither the plan nor the reason can be written
    assert "failure.txt: the disk is full. Free some space, then run again" in message

    (small_disk / "fill").unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert run(spec, monkeypatch, tmp_path) == ""
    assert is_finished(spec)
    assert [step["step"] for step in log_of(spec)] == [1, 2, 3, 4, 5]


def test_a_reason_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(tmp_path)
    spec.work.mkdir(parents=True)
    capsys.readouterr()
    with no_writing():
        assert training_process._fail(spec, "the loss is nan", None) == 1
        message = failure_message(spec, 1)
    assert "the training could not say why it ended: Cannot write " in message
    assert "failure.txt: the file exceeds the size limit" in message
    assert capsys.readouterr().err.startswith("error: the loss is nan\n(the reason could not be written: Cannot write")
    assert list(spec.work.iterdir()) == []


def test_a_start_whose_writes_fail_loses_no_checkpoint(tmp_path: Path) -> None:
    work = tmp_path / "work"
    prepare_work(work, "key")
    kept = work / "checkpoint-5"
    kept.mkdir()
    mark_complete(kept, "key")
    (work / "metrics.jsonl").write_text('{"step": 5}\n')
    with no_writing():
        assert prepare_work(work, "key") == kept  # nothing is written where nothing changes
        with pytest.raises(GateauError, match=r"metrics.jsonl: the file exceeds the size limit"):
            rewind_log(work / "metrics.jsonl", 5)
    assert prepare_work(work, "key") == kept
    assert (work / "metrics.jsonl").read_text() == '{"step": 5}\n'
    with no_writing(), pytest.raises(GateauError, match=r"Cannot write .*resume_key"):
        prepare_work(work, "another key")
    assert list(work.iterdir()) == []


def test_a_marker_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("gateau_dagster.training.checkpoints.replace_local", full)
    unused: Any = None
    callback = TrainingCallback(make_spec(tmp_path), unused, unused, unused, unused)
    arguments, state = TrainingArguments(output_dir=str(tmp_path), report_to=[]), TrainerState(global_step=5)
    with refused("training.not_written"):
        callback.on_save(arguments, state, TrainerControl())


def failing_writes(folder: Path) -> list[Exception]:
    """What the libraries really raise."""
    found: list[Exception] = []
    weights = {"weights": torch.ones(1000)}
    for write in (
        lambda: torch.save(weights, folder / "weights.pt"),
        lambda: torch.save(weights, folder / "old.pt", _use_new_zipfile_serialization=False),
        lambda: save_file(weights, folder / "weights.safetensors"),
        lambda: (folder / "text").write_text("text"),
    ):
        with no_writing(), pytest.raises(Exception) as caught:
            write()
        found.append(caught.value)
    return found


def test_failed_writes_are_told_from_other_errors(tmp_path: Path) -> None:
    writes = failing_writes(tmp_path)
    assert len({type(error) for error in writes}) == 3
    for error in writes:
        with refused("training.not_written"):
            raise_within(error, tmp_path)
    others = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.distributed.DistBackendError("NCCL communicator was aborted on rank 1"),
        RuntimeError("[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
        RuntimeError("Some tensors share memory, this will lead to duplicate memory on disk"),
        FileNotFoundError(2, "No such file or directory"),  # another rank has removed the torn checkpoint
    ]
    for error in others:
        with pytest.raises(type(error)) as caught:
            raise_within(error, tmp_path)
        assert caught.value is error


def raise_within(error: Exception, folder: Path) -> None:
    with saving("a checkpoint", folder):
        raise error


def test_what_is_torn_goes_with_a_failed_write_and_only_then(tmp_path: Path) -> None:
    torn = tmp_path / "checkpoint-5"
    for error, left in ((torch.OutOfMemoryError("CUDA out of memory"), True), (OSError(28, "No space left"), False)):
        torn.mkdir()
        (torn / "weights").write_text("half")
        with pytest.raises((GateauError, torch.OutOfMemoryError)), saving("a checkpoint", tmp_path, torn=torn):
            raise error
        assert torn.exists() == left
        shutil.rmtree(torn, ignore_errors=True)
