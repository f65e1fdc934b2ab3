"""Starting trainings as the product starts them, and reading what they left."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from gateau_dagster.training.launch import MODULE, training_command, training_environment
from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.spec import TrainingSpec
from tests.process_list import descendants

ROOT = Path(__file__).parents[2]


def start(spec: TrainingSpec, path: Path, **environment: str) -> subprocess.Popen[str]:
    """The training in processes of its own, as Dagster starts it; `path`: where its specification is kept."""
    spec.save(path)
    training = spec.training
    command = training_command(
        path,
        processes=training.processes,
        deepspeed=spec.deepspeed is not None,
        launcher=training.launcher,
        hostfile=spec.hostfile,
    )
    added = training_environment(processes=training.processes, cuda=False)
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **added, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[str], *, status: int = 0) -> str:
    """What it wrote; it has to end with `status`."""
    output = process.communicate(timeout=500)[0]
    assert process.returncode == status, output
    return output


def wait_for_step(spec: TrainingSpec, process: subprocess.Popen[str], step: int) -> None:
    """Return as soon as the training has logged `step`."""
    wait_until(lambda: any(metrics["step"] >= step for metrics in read_log(spec.log)), process)


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Return as soon as it happened; the training may not end before."""
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def rank_process(process: subprocess.Popen[str], rank: int) -> psutil.Process:
    """The process of one rank, below the launcher."""
    for child in descendants(process.pid, MODULE):
        if child.environ().get("RANK") == str(rank):
            return child
    raise AssertionError(f"rank {rank} does not run")


def weights_differ(one: TrainingSpec, other: TrainingSpec) -> float:
    """Largest absolute difference between two results."""
    first, second = (load_file(spec.output / "model.safetensors") for spec in (one, other))
    assert first.keys() == second.keys()
    return max(float((first[name].float() - second[name].float()).abs().max()) for name in first)


def result_of(spec: TrainingSpec) -> dict[str, Any]:
    """The output's training_log.json."""
    return json.loads((spec.output / "training_log.json").read_text())


def log_of(spec: TrainingSpec) -> list[dict[str, Any]]:
    """Its steps."""
    return result_of(spec)["steps"]
