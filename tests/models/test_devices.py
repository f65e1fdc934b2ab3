"""Which device each worker gets, and which settings exclude each other."""

from typing import Any

import pytest
import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.models.devices import matrix_product_speed, resolve_device, worker_devices
from tests.error_codes import refused


def test_the_device_of_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    with refused("scoring.device", "cuda:1.*0.*CUDA"):
        resolve_device("cuda:1")
    with refused("scoring.device", "'gpu0'"):
        resolve_device("gpu0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((3, 7)[index], 8))
    assert resolve_device("auto") == torch.device("cuda:1"), "the one with more free memory"
    assert resolve_device("cuda:0").index == 0
    with refused("scoring.device", "cuda:2"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "devices"),
    [
        (0, "auto", "auto", ["auto"]),
        (0, 2, "auto", ["cpu", "cpu"]),
        (0, 3, "cpu", ["cpu"] * 3),
        (1, "auto", "auto", ["auto"]),
        (4, "auto", "auto", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (4, "auto", "cuda:1", ["cuda:1"]),
        (4, "auto", "cuda", ["cuda"]),
        (4, "auto", "cpu", ["cpu"]),
        (2, 3, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (2, 2, "cuda", ["cuda:0", "cuda:1"]),
        (2, 2, "cuda:1", ["cuda:1", "cuda:1"]),
        (2, 1, "auto", ["auto"]),
    ],
)
def test_devices(monkeypatch: pytest.MonkeyPatch, gpus: int, workers: Any, device: str, devices: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert worker_devices(ScoringConfig(workers=workers), device) == devices


@pytest.mark.parametrize("workers", ["auto", 1])
def test_a_device_map_needs_no_workers(monkeypatch: pytest.MonkeyPatch, workers: Any) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert worker_devices(ScoringConfig(device_map="auto", workers=workers), "auto") == ["auto"]


def test_a_device_that_the_resource_names_excludes_a_device_map() -> None:
    with refused("scoring.device_map", "device_map.*'cuda:1'"):
        worker_devices(ScoringConfig(device_map="auto"), "cuda:1")


def test_the_speed_of_this_machine_is_plausible_and_its_threads_stay() -> None:
    threads = torch.get_num_threads()
    assert 1e7 < (matrix_product_speed("cpu", "float32") or 0.0) < 1e15
    assert torch.get_num_threads() == threads


def test_without_memory_for_a_product_no_speed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", fail)
    assert matrix_product_speed.__wrapped__("cpu", "float32") is None
