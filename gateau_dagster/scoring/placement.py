"""Where a step's models go: the device of each worker, and what cannot be combined."""

import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.errors import GateauError

AUTO = "auto"


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
