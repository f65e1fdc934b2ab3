"""Devices: which of them score, what cannot be combined, and how fast one multiplies matrices."""

import time
from collections.abc import Callable

import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.loading import resolve_device

AUTO = "auto"
_PRODUCTS = 5  # the fastest counts


def worker_devices(scoring: ScoringConfig, device: str) -> list[str]:
    """The device of each worker, in the words of `scoring.device`; one worker where nothing asks for more.

    Workers on `auto` or `cuda` take the GPUs in turn, those on a named device share it.

    Args:
        device: scoring.device, or what overrides it.

    Raises:
        GateauError: settings that exclude each other.
    """
    if scoring.device_map is not None:
        check_device_map(device)
        return [device]
    gpus = torch.cuda.device_count() if device in {AUTO, "cuda"} else 0
    workers = scoring.workers
    if workers == AUTO:
        workers = max(gpus, 1) if device == AUTO else 1
    if workers == 1:
        return [device]
    if gpus:
        return [f"cuda:{number % gpus}" for number in range(workers)]
    return ["cpu" if device == AUTO else device] * workers


def check_device_map(device: str) -> None:
    """Raises GateauError when scoring.device_map meets a device that the resource `models` names."""
    if device != AUTO:
        raise GateauError(
            f"scoring.device_map: auto takes all GPUs, but the resource `models` names {device!r}: leave one out"
        )


def matrix_product_speed(device: str, dtype: str) -> float:
    """FLOP/s of a matrix product of this type on this device, measured for a fraction of a second."""
    place = resolve_device(device)
    size = 8192 if place.type == "cuda" else 512
    a = torch.randn(size, size, device=place).to(getattr(torch, dtype))
    return 2.0 * size**3 / min(timed(place, lambda: a @ a) for _ in range(_PRODUCTS))


def timed(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds that `run` takes, with all that it starts on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
