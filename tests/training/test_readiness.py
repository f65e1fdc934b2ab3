"""What is missing is named before anything is loaded."""

import os
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.readiness import check_device, check_packages, check_ranks
from gateau_dagster.training.train import train, training_arguments
from tests.error_codes import refused
from tests.training.builders import make_spec


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"report_to": ["mlflow"]}, r"training.report_to: mlflow is not installed. Run `pip install mlflow`"),
        ({"liger": True}, r"training.liger: the package liger-kernel is not installed"),
        ({"lora": {}}, r"training.lora: the package peft is not installed"),
    ],
)
def test_missing_packages(given: dict[str, Any], message: str) -> None:
    training = TrainingConfig.model_validate(given)
    with refused("training.package", message):
        check_packages(training, installed=lambda package: False)
    check_packages(training, installed=lambda package: True)


def test_either_package_of_tensorboard_will_do() -> None:
    training = TrainingConfig(report_to=["tensorboard"])
    check_packages(training, installed=lambda package: package == "tensorboardX")


def test_a_gpu_is_asked_for() -> None:
    for given, message in (({"liger": True}, "kernels need a GPU"), ({"dtype": "float16"}, "float16 needs a GPU")):
        training = TrainingConfig.model_validate(given)
        with refused("training.no_gpu", message):
            check_device(training, cuda=False)
        check_device(training, cuda=True)


def test_ranks() -> None:
    check_ranks(TrainingConfig(processes=2), ranks=2)
    with refused("training.processes", "2.*1"):
        check_ranks(TrainingConfig(processes=2), ranks=1)


def test_liger_leaves_the_loss_alone(tmp_path: Path) -> None:
    arguments = training_arguments(make_spec(tmp_path, liger=True), steps=3)
    assert arguments.use_liger_kernel
    assert arguments.liger_kernel_config == {"cross_entropy": False, "fused_linear_cross_entropy": False}
    assert not training_arguments(make_spec(tmp_path), steps=3).use_liger_kernel


def test_the_cpu_is_taken_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    spec = make_spec(tmp_path)
    asked = training_arguments(spec, steps=3, cpu=True)
    assert (asked.use_cpu, asked.device.type, asked.dataloader_pin_memory) == (True, "cpu", False)
    with refused("training.no_gpu", "float16.*GPU"):
        train(make_spec(tmp_path, dtype="float16"), lambda metrics: None, cpu=True)


def test_curves_in_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    spec = make_spec(tmp_path, max_steps=3, report_to=["tensorboard"])
    steps: list[dict[str, Any]] = []
    train(spec, steps.append)
    [events] = tmp_path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(os.fspath(events.parent)).Reload()
    assert [event.value for event in found.Scalars("train/loss")] == pytest.approx([step["loss"] for step in steps])
    assert [event.step for event in found.Scalars("train/learning_rate")] == [1, 2, 3]
    assert events.is_relative_to(spec.work)
