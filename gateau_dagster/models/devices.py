"""Choose the devices that score, measure how fast they multiply matrices, and switch on FlashAttention 3."""

import importlib.util
import time
from collections.abc import Callable
from functools import cache

import torch
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    list_flash_attention_impls,
)

from gateau_dagster.config import ScoringConfig
from gateau_dagster.errors import GateauError

AUTO = "auto"
_FEWEST, _MOST, _SECONDS = 5, 50, 1.0  # number of matrix products, and their time limit


def resolve_device(device: str) -> torch.device:
    """Return the torch device of a name; 'auto' is the GPU with the most free memory, else the CPU.

    Raises GateauError for an absent or unknown device.
    """
    if device == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if device == "auto":  # the most free memory, so that parallel steps spread over the GPUs
        return torch.device("cuda", max(range(torch.cuda.device_count()), key=_free_memory))
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise GateauError(
            "scoring.device", f"scoring.device: {device!r} is not a device: use auto, cpu, cuda or cuda:1"
        ) from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise GateauError(
            "scoring.device",
            f"scoring.device: {device} is configured, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices: use cpu or auto, or install torch's CUDA build and check "
            "the driver",
        )
    return target


def check_scoring_device(scoring: ScoringConfig) -> None:
    """Check that `scoring.device` is in this machine, computes in `scoring.dtype` and has `scoring.attention`.

    Raises:
        GateauError: the device is absent, or does not support the type or the attention.
    """
    place = resolve_device(scoring.device)
    if scoring.attention == "fa3":
        check_flash_attention_3(place, key="scoring.attention")
    if place.type == "cuda" and scoring.dtype == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise GateauError(
            "scoring.dtype", f"scoring.dtype: {place} does not compute in bfloat16. Use float16 or float32."
        )


def worker_devices(scoring: ScoringConfig, device: str) -> list[str]:
    """Return the device of each worker, in the values of `scoring.device`; one worker unless more are configured.

    Workers on `auto` or `cuda` take the GPUs in turn; workers on a named device share it.

    Args:
        device: scoring.device, or the device that overrides it.

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
    """Raise GateauError if scoring.device_map is combined with a device that the resource `models` names."""
    if device != AUTO:
        raise GateauError(
            "scoring.device_map",
            f"scoring.device_map: auto uses all GPUs, but the resource `models` names {device!r}: remove one of them",
        )


@cache
def matrix_product_speed(device: str, dtype: str) -> float | None:
    """Return the FLOP/s of a matrix product of this type on this device; None if there is not enough memory for it.

    It is measured once per process, as the fastest of several products. On the CPU it is the speed of one core times
    torch's threads. On a busy machine one core is free for a moment, but never all of them together.
    """
    from gateau_dagster.models.memory import is_out_of_memory

    place, threads = resolve_device(device), torch.get_num_threads()
    on_cpu = place.type == "cpu"
    # The fastest of several: whatever else runs can only slow a product down. A mean would measure the neighbours.
    size, end, seconds = 512 if on_cpu else 8192, time.monotonic() + _SECONDS, list[float]()
    torch.set_num_threads(1)
    try:
        a = torch.randn(size, size, device=place).to(getattr(torch, dtype))
        while len(seconds) < _FEWEST or (len(seconds) < _MOST and time.monotonic() < end):
            seconds.append(_timed(place, lambda: a @ a))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        torch.set_num_threads(threads)
    return 2.0 * size**3 / min(seconds) * (threads if on_cpu else 1)


def _timed(device: torch.device, run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes, including all work that it starts on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _free_memory(index: int) -> int:
    """Return the free bytes of a GPU; 0 if others have left too little to ask it."""
    from gateau_dagster.models.memory import is_out_of_memory

    try:
        return torch.cuda.mem_get_info(index)[0]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return 0


_NAME, _PACKAGE = "FA3", "flash_attn_interface"
_HOPPER = 9  # major compute capability that the kernels are written for


def use_flash_attention_3(device: torch.device, *, key: str) -> None:
    """Let every later attention in half precision on `device` run FlashAttention 3, until the process ends.

    Args:
        device: of the model.
        key: the setting that asks for it, for messages.

    Raises:
        GateauError: the device, torch or the installed packages do not have it.
    """
    if current_flash_attention_impl() == _NAME:
        return
    check_flash_attention_3(device, key=key)
    try:
        activate_flash_attention_impl(_NAME)
    except (ImportError, RuntimeError, OSError) as error:
        reason = f"its kernels cannot be loaded ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        raise _refusal(reason, key) from error


def check_flash_attention_3(device: torch.device, *, key: str) -> None:
    """Check that FlashAttention 3 exists for `device`, without loading it; see `use_flash_attention_3`."""
    lack = _lack(device)
    if lack is not None:
        raise _refusal(lack, key)


def _refusal(reason: str, key: str) -> GateauError:
    return GateauError(
        "models.attention",
        f"{key}: fa3 cannot be used: {reason}. Install flash-attn-3 on a machine with a Hopper GPU (H100, H200), or "
        f"set {key}: auto.",
    )


def _lack(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it runs on a GPU, but the device is {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major != _HOPPER:
        return f"it needs compute capability {_HOPPER}.0, but this GPU has {major}.{minor}"
    if _NAME not in list_flash_attention_impls():
        return f"torch {torch.__version__} does not offer it"
    if importlib.util.find_spec(_PACKAGE) is None:
        return f"the module {_PACKAGE} is not installed"
    return None
