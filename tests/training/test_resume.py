"""Trainings that are stopped, killed or run out of disk, and run again: the same weights as an undisturbed one."""

import os
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gateau_dagster.errors import GateauError
from gateau_dagster.training import model as model_module
from gateau_dagster.training.checkpoints import MARKER, last_checkpoint
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.train import train
from tests.error_codes import refused
from tests.training.builders import make_spec
from tests.training.processes import log_of, start, wait_for_step, weights_differ


def test_stopped_killed_and_torn_in_a_save_in_later_epochs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "max_steps": 60,
        "save_steps": 5,
    }  # 11 samples, 4 a step: an epoch has not even three steps
    undisturbed = make_spec(tmp_path, name="undisturbed", **settings)
    train(undisturbed, lambda metrics: None)
    spec = make_spec(tmp_path, name="disturbed", **settings)

    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 8)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    stopped_at = last_checkpoint(spec.work)
    assert stopped_at is not None

    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, int(stopped_at.name.split("-")[1]) + 12)
    process.kill()
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not spec.output.exists()

    # What a kill in the middle of a save leaves: some files, one of them cut short, no marker.
    killed_at = last_checkpoint(spec.work)
    assert killed_at is not None
    step = int(killed_at.name.split("-")[1])
    assert int(stopped_at.name.split("-")[1]) < step < 60
    torn = spec.work / f"checkpoint-{step + 5}"
    shutil.copytree(killed_at, torn, dirs_exist_ok=True)
    (torn / MARKER).unlink()
    os.truncate(torn / "optimizer.pt", 100)
    with spec.log.open("a") as log:
        log.write('{"step": 7')

    steps: list[int] = []
    train(spec, lambda metrics: steps.append(metrics["step"]))
    assert steps == list(range(step + 1, 61))
    assert weights_differ(spec, undisturbed) <= 1e-6
    assert [metrics["step"] for metrics in log_of(spec)] == list(range(1, 61))
    losses, wanted = ([metrics["loss"] for metrics in log_of(each)] for each in (spec, undisturbed))
    assert losses == pytest.approx(wanted, abs=1e-6)


@pytest.mark.long
def test_a_flipped_bit_in_a_checkpoint_does_not_reach_the_weights(tmp_path: Path) -> None:
    """Neither torch nor safetensors would notice it."""

    def stop_at_five(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 5:
            raise KeyboardInterrupt

    spec = make_spec(tmp_path, max_steps=7, save_steps=2)
    with pytest.raises(KeyboardInterrupt):
        train(spec, stop_at_five)
    weights = spec.work / "checkpoint-4" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 0x40
    weights.write_bytes(data)
    steps, said = list[int](), list[str]()
    train(spec, lambda metrics: steps.append(metrics["step"]), say=said.append)
    assert steps == [3, 4, 5, 6, 7]
    assert len(said) == 1 and "checkpoint-4 is damaged (model.safetensors)" in said[0]


def test_another_fingerprint_starts_afresh(tmp_path: Path) -> None:
    def stop_at_five(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 5:
            raise KeyboardInterrupt

    first = make_spec(tmp_path, max_steps=8)
    with pytest.raises(KeyboardInterrupt):
        train(first, stop_at_five)
    assert last_checkpoint(first.work) == first.work / "checkpoint-3"
    changed = make_spec(tmp_path, max_steps=8, learning_rate=1e-3)
    steps: list[int] = []
    train(changed, lambda metrics: steps.append(metrics["step"]))
    assert steps == list(range(1, 9))
    fresh = make_spec(tmp_path, name="fresh", max_steps=8, learning_rate=1e-3)
    train(fresh, lambda metrics: None)
    assert weights_differ(changed, fresh) == 0
    assert [metrics["step"] for metrics in log_of(changed)] == list(range(1, 9))


def test_full_disk_in_a_save_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    try:
        with pytest.raises(GateauError, match=r"a checkpoint could not be written to .*Free disk space"):
            train(spec, fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert last_checkpoint(spec.work) == spec.work / "checkpoint-3"
    assert [metrics["step"] for metrics in read_log(spec.log)] == list(range(1, 7))
    steps: list[int] = []
    train(spec, lambda metrics: steps.append(metrics["step"]))
    assert steps == [4, 5, 6, 7, 8]
    undisturbed = make_spec(tmp_path, name="undisturbed", max_steps=8)
    train(undisturbed, lambda metrics: None)
    assert weights_differ(spec, undisturbed) <= 1e-6


def test_full_disk_at_the_end_leaves_no_output_and_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path, max_steps=4)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model_module, "_write_log", full)
        with refused("training.not_written"):
            train(spec, lambda metrics: None)
    assert [path.name for path in spec.output.parent.iterdir()] == ["work"]
    steps: list[int] = []
    train(spec, lambda metrics: steps.append(metrics["step"]))
    assert steps == []
    assert [metrics["step"] for metrics in log_of(spec)] == [1, 2, 3, 4]
    assert torch.isfinite(load_file(spec.output / "model.safetensors")["lm_head.weight"]).all()
