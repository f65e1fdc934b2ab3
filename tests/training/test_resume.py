"""Trainings that are stopped, killed or run out of disk, and run again: the same weights as an undisturbed one."""

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gateau_dagster.training import model as model_module
from gateau_dagster.training.checkpoints import MARKER, last_checkpoint, step_of
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.launch import TrainingSpec, failure_message, is_finished
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.train import train
from tests.kit.error_codes import refused
from tests.storage.builders import flipped
from tests.training.builders import (
    agree,
    finish,
    log_of,
    make_spec,
    poisoned,
    rank_process,
    run,
    start,
    wait_for_step,
    wait_until,
    weights_differ,
)


def steps_of(log: list[dict[str, Any]]) -> list[int]:
    return [metrics["step"] for metrics in log]


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.long)])
def test_stopped_killed_and_torn_in_a_save_in_later_epochs(tmp_path: Path, stopped: bool) -> None:
    steps = 60 if stopped else 30
    settings: dict[str, Any] = {"max_steps": steps, "save_steps": 5}  # 11 samples, 4 a step: an epoch has three steps
    undisturbed = make_spec(tmp_path, name="undisturbed", **settings)
    run(undisturbed)
    spec = make_spec(tmp_path, name="disturbed", **settings)

    stopped_at = 0
    if stopped:
        process = start(spec, tmp_path / "spec.json")
        wait_for_step(spec, process, 8)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=300)[0]
        assert process.returncode == 128 + signal.SIGTERM, output
        stopped_at = last_step(spec)

    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, stopped_at + 12)
    process.kill()
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not spec.output.exists()

    # What a kill in the middle of a save leaves: some files, one of them cut short, no marker.
    step = last_step(spec)
    assert stopped_at < step < steps
    torn = spec.work / f"checkpoint-{step + 5}"
    shutil.copytree(spec.work / f"checkpoint-{step}", torn, dirs_exist_ok=True)
    (torn / MARKER).unlink()
    os.truncate(torn / "optimizer.pt", 100)
    with spec.log.open("a") as log:
        log.write('{"step": 7')

    assert steps_of(run(spec)) == list(range(step + 1, steps + 1))
    assert steps_of(log_of(spec)) == list(range(1, steps + 1))
    agree(spec, undisturbed, loss=1e-6, weights=1e-6)


@pytest.mark.long
def test_a_flipped_bit_in_a_checkpoint_does_not_reach_the_weights(tmp_path: Path) -> None:
    """Neither torch nor safetensors would notice it."""
    spec = make_spec(tmp_path, max_steps=7, save_steps=2)
    run(spec, stop_at=5)
    weights = spec.work / "checkpoint-4" / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(flipped(data, 8 * (len(data) - 100) + 6))
    steps, said = list[int](), list[str]()
    train(spec, lambda metrics: steps.append(metrics["step"]), say=said.append)
    assert steps == [3, 4, 5, 6, 7]
    assert len(said) == 1 and "checkpoint-4 is damaged (model.safetensors)" in said[0]


def test_full_disk_in_a_save_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, max_steps=8)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(metrics: dict[str, Any]) -> None:
        if metrics["step"] == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))

    try:
        with refused("training.not_written"):
            train(spec, fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert last_checkpoint(spec.work) == spec.work / "checkpoint-3"
    assert steps_of(read_log(spec.log)) == list(range(1, 7))
    assert steps_of(run(spec)) == [4, 5, 6, 7, 8]
    undisturbed = make_spec(tmp_path, name="undisturbed", max_steps=8)
    run(undisturbed)
    assert weights_differ(spec, undisturbed) <= 1e-6


def test_full_disk_at_the_end_leaves_no_output_and_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, full = make_spec(tmp_path, max_steps=4), mock.Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "record_bytes", full)
        with refused("training.not_written"):
            train(spec, lambda metrics: None)
    assert [path.name for path in spec.output.parent.iterdir()] == ["work"]
    assert run(spec) == [] and steps_of(log_of(spec)) == [1, 2, 3, 4]
    assert torch.isfinite(load_file(spec.output / "model.safetensors")["lm_head.weight"]).all()


def last_step(spec: TrainingSpec) -> int:
    """Return the step of its last complete checkpoint."""
    folder = last_checkpoint(spec.work)
    assert folder is not None
    return step_of(folder)


def killed(spec: TrainingSpec, process: subprocess.Popen[str], rank: int) -> str:
    """Kill one of its ranks; return the message that Dagster shows of it."""
    rank_process(process, rank).kill()
    process.communicate(timeout=300)
    assert process.returncode > 0
    return failure_message(spec, process.returncode)


PACKED: dict[str, Any] = {
    "batching": "packed",
    "pack_length": 70,
    "skip": {"strategy": "outer", "length": 500, "probability": 0.5},
    "batch_size": 1,
}


def two_ranks(folder: Path, *, name: str = "run", stage: str | None = "zero3", **changes: Any) -> TrainingSpec:
    """11 samples, six or so a step: a step that is far on is in a later epoch."""
    config = deepspeed_config(stage, folder=folder)
    settings = {"processes": 2, "gradient_accumulation": 2, "max_steps": 40, "save_steps": 4} | PACKED
    return make_spec(folder, name=name, deepspeed=config, **settings | changes)


def torn_checkpoints(spec: TrainingSpec) -> list[Path]:
    """Folders of a save that has begun and is not over."""
    return [folder for folder in spec.work.glob("checkpoint-*") if not (folder / MARKER).exists()]


def kill_all(process: subprocess.Popen[str]) -> None:
    """Launcher and ranks at the same moment, as when the machine goes down."""
    everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everyone:
        each.kill()
    process.communicate(timeout=300)


@pytest.mark.long
def test_killed_at_any_time_in_float32(tmp_path: Path) -> None:
    undisturbed = two_ranks(tmp_path, name="undisturbed")
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    spec = two_ranks(tmp_path)

    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 6)
    assert "killed, often by the system" in killed(spec, process, 0)
    kept = last_step(spec)

    process = start(spec, tmp_path / "spec.json")  # in a save, in a later epoch: both ranks write a part of it
    wait_for_step(spec, process, kept + 7)
    wait_until(lambda: bool(torn_checkpoints(spec)), process)
    assert "killed, often by the system" in killed(spec, process, 1)
    assert kept < last_step(spec) < 40

    process = start(spec, tmp_path / "spec.json")  # while it writes its last checkpoint and the trained model
    wait_for_step(spec, process, 40)
    kill_all(process)
    assert spec.output.exists() == is_finished(spec)

    finish(start(spec, tmp_path / "spec.json"))
    assert steps_of(log_of(spec)) == list(range(1, 41))
    agree(spec, undisturbed, weights=1e-5)
    AutoModelForCausalLM.from_pretrained(spec.output)
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}


def killed_and_undisturbed(tmp_path: Path, **settings: Any) -> tuple[TrainingSpec, TrainingSpec]:
    """Two trainings of twelve steps, ended: one lost its second rank after the sixth and was started again."""
    undisturbed = two_ranks(tmp_path, name="undisturbed", max_steps=12, **settings)
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    spec = two_ranks(tmp_path, max_steps=12, **settings)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 6)
    assert killed(spec, process, 1) and not spec.output.exists()
    finish(start(spec, tmp_path / "spec.json"))
    return spec, undisturbed


@pytest.mark.long
@pytest.mark.parametrize("stage", ["zero2", "zero3", None])
def test_killed_in_bfloat16(tmp_path: Path, stage: str | None) -> None:
    """The float32 master weights are part of a checkpoint: the same bits as without the kill, on the same machine."""
    spec, undisturbed = killed_and_undisturbed(tmp_path, stage=stage, dtype="bfloat16")
    assert weights_differ(spec, undisturbed) == 0


@pytest.mark.long
@pytest.mark.parametrize("stage", [None, "zero3"])
def test_killed_with_adapters(tmp_path: Path, stage: str | None) -> None:
    spec, undisturbed = killed_and_undisturbed(tmp_path, stage=stage, lora={"rank": 4}, learning_rate=2e-2)
    agree(spec, undisturbed, weights=1e-5)


@pytest.mark.long
def test_a_full_disk_under_one_rank_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    spec = two_ranks(tmp_path, max_steps=30)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 5)
    resource.prlimit(rank_process(process, 1).pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    output = process.communicate(timeout=300)[0]
    assert process.returncode > 0, output
    assert "a checkpoint could not be written to" in failure_message(spec, process.returncode)
    assert "Free disk space" in failure_message(spec, process.returncode)
    assert last_step(spec) < 30
    assert not spec.output.exists()
    finish(start(spec, tmp_path / "spec.json"))
    undisturbed = two_ranks(tmp_path, name="undisturbed", max_steps=30)
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    assert weights_differ(spec, undisturbed) <= 1e-5


@pytest.mark.long
def test_a_loss_that_is_no_number_on_one_of_two_ranks(tmp_path: Path) -> None:
    spec = poisoned(two_ranks(tmp_path, stage=None))
    process = start(spec, tmp_path / "spec.json")
    finish(process, status=1)
    assert "the loss is nan at step" in failure_message(spec, 1)
    assert "sample-7" in failure_message(spec, 1)
    assert not spec.output.exists()


@pytest.mark.long
def test_the_ranks_end_with_a_launcher_that_is_killed_alone(tmp_path: Path) -> None:
    """They would write where the next attempt writes."""
    spec = two_ranks(tmp_path, stage=None, max_steps=4000)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 2)
    ranks = [rank_process(process, rank) for rank in range(2)]
    process.kill()
    _, left = psutil.wait_procs(ranks, timeout=60)
    assert left == []
    process.communicate(timeout=300)


@pytest.mark.long
def test_told_to_stop(tmp_path: Path) -> None:
    """As Dagster does when a run is terminated: all ranks end, and the next attempt goes on from what is saved."""
    undisturbed = two_ranks(tmp_path, name="undisturbed", stage=None)
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    spec = two_ranks(tmp_path, stage=None)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 6)
    ranks = [rank_process(process, rank) for rank in range(2)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode != 0
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
    kept = last_step(spec)
    output = finish(start(spec, tmp_path / "spec.json"))
    assert f"step {kept + 1}/40" in output and f"step {kept}/40" not in output
    assert steps_of(log_of(spec)) == list(range(1, 41))
    assert weights_differ(spec, undisturbed) <= 1e-5
