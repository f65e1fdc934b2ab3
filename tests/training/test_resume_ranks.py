"""Two ranks, packed rows and skips: killed at any time, out of disk, a loss that is no number."""

import math
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gateau_dagster.training.checkpoints import MARKER, last_checkpoint, step_of
from gateau_dagster.training.deepspeed_config import deepspeed_config
from gateau_dagster.training.launch import failure_message, is_finished
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import train
from tests.error_codes import refused
from tests.training.builders import make_spec
from tests.training.processes import finish, log_of, rank_process, start, wait_for_step, wait_until, weights_differ

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
    rank_process(process, 0).kill()
    process.communicate(timeout=300)
    assert process.returncode > 0
    assert "killed, often by the system" in failure_message(spec, process.returncode)
    kept = last_checkpoint(spec.work)
    assert kept is not None

    process = start(spec, tmp_path / "spec.json")  # in a save, in a later epoch: both ranks write a part of it
    wait_for_step(spec, process, step_of(kept) + 7)
    wait_until(lambda: bool(torn_checkpoints(spec)), process)
    rank_process(process, 1).kill()
    process.communicate(timeout=300)
    assert process.returncode > 0
    assert "killed, often by the system" in failure_message(spec, process.returncode)
    later = last_checkpoint(spec.work)
    assert later is not None
    assert step_of(kept) < step_of(later) < 40

    process = start(spec, tmp_path / "spec.json")  # while it writes its last checkpoint and the trained model
    wait_for_step(spec, process, 40)
    kill_all(process)
    assert spec.output.exists() == is_finished(spec)

    finish(start(spec, tmp_path / "spec.json"))
    assert [step["step"] for step in log_of(spec)] == list(range(1, 41))
    losses, wanted = ([step["loss"] for step in log_of(each)] for each in (spec, undisturbed))
    assert losses == pytest.approx(wanted, abs=1e-5, rel=0)
    assert weights_differ(spec, undisturbed) <= 1e-5
    AutoModelForCausalLM.from_pretrained(spec.output)
    assert {path.name for path in spec.output.parent.iterdir()} == {"checkpoint", "work"}


def killed_and_undisturbed(tmp_path: Path, **settings: Any) -> tuple[TrainingSpec, TrainingSpec]:
    """Two trainings of twelve steps, ended: one lost its second rank after the sixth and was started again."""
    undisturbed = two_ranks(tmp_path, name="undisturbed", max_steps=12, **settings)
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    spec = two_ranks(tmp_path, max_steps=12, **settings)
    process = start(spec, tmp_path / "spec.json")
    wait_for_step(spec, process, 6)
    rank_process(process, 1).kill()
    process.communicate(timeout=300)
    assert not spec.output.exists()
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
    losses, wanted = ([step["loss"] for step in log_of(each)] for each in (spec, undisturbed))
    assert losses == pytest.approx(wanted, abs=1e-5, rel=0)
    assert weights_differ(spec, undisturbed) <= 1e-5


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
    kept = last_checkpoint(spec.work)
    assert kept is not None
    assert step_of(kept) < 30
    assert not spec.output.exists()
    finish(start(spec, tmp_path / "spec.json"))
    undisturbed = two_ranks(tmp_path, name="undisturbed", max_steps=30)
    finish(start(undisturbed, tmp_path / "undisturbed.json"))
    assert weights_differ(spec, undisturbed) <= 1e-5


def poisoned(spec: TrainingSpec) -> TrainingSpec:
    """Sample 7 alone holds a token whose embedding is no number."""
    weights = load_file(Path(spec.base_model) / "model.safetensors")
    weights["model.embed_tokens.weight"][299] = math.nan
    save_file(weights, Path(spec.base_model) / "model.safetensors", metadata={"format": "pt"})
    mix = pl.read_parquet(spec.mix)
    ids = [[5 if token == 299 else token for token in row] for row in mix["input_ids"].to_list()]
    ids[7][2] = 299
    mix.with_columns(pl.Series("input_ids", ids, dtype=pl.List(pl.Int32()))).write_parquet(spec.mix)
    return spec


def test_a_loss_that_is_no_number_names_the_samples_of_its_packed_row(tmp_path: Path) -> None:
    spec = poisoned(make_spec(tmp_path, **PACKED))
    with refused("training.diverged", "batch's") as caught:
        train(spec, lambda metrics: None)
    named = str(caught.value).split("samples: ")[1].split(". ")[0].split(", ")
    assert "sample-7" in named
    assert 1 < len(named) < 6


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
    kept = last_checkpoint(spec.work)
    assert kept is not None
    output = finish(start(spec, tmp_path / "spec.json"))
    assert f"step {step_of(kept) + 1}/40" in output
    assert f"step {step_of(kept)}/40" not in output
    assert [step["step"] for step in log_of(spec)] == list(range(1, 41))
    assert weights_differ(spec, undisturbed) <= 1e-5
