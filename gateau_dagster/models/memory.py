"""Device memory: what fits, how large a batch may be, and how much was used."""

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

_Result = TypeVar("_Result")
_TEXTS = ("can't allocate memory", "out of memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU allocator raises a RuntimeError that only its text tells apart."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(part in text for part in _TEXTS)


def unless_out_of_memory(run: Callable[[], _Result]) -> _Result | None:
    """What `run` returns, or None, with its memory given back, when there is not enough; other errors are raised."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Only here is the error gone, whose traceback holds every frame of the pass and so every tensor in it.
    release_memory()
    return None


def release_memory() -> None:
    """Give back what dead cycles and the device's cache hold, so that a smaller batch does not meet their remains."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def out_of_memory_reason(tokens: int, advice: str) -> str:
    """The reason written beside a sample that did not fit."""
    return f"out of memory on a prompt of {tokens} tokens: {advice}"


# Tokens that fitted where more did not, for as long as the model is loaded: the next shard does not try again.
_fitting: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


class TokenBudget:
    """The bound for one model; it only shrinks.

    It does not grow back: a batch half as large costs a few per cent of speed, while every attempt at the larger one
    costs a whole pass and leaves the device's memory in pieces.
    """

    def __init__(self, model: nn.Module, allowed: int) -> None:
        assert allowed > 0
        self._model = model
        self._allowed = allowed

    @property
    def tokens(self) -> int:
        """Tokens that a batch of several prompts may hold."""
        return min(self._allowed, _fitting.get(self._model, self._allowed))

    def halve(self, failed: int) -> None:
        """A batch of `failed` tokens did not fit."""
        _fitting[self._model] = max(1, min(failed, self.tokens) // 2)


_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"


class PeakMemory:
    """Starts at the current use; `read` gives the peak since then.

    CUDA: `torch.cuda.max_memory_allocated`, of the fullest GPU when a model is spread over several. CPU: the peak of
    the process's resident set (VmHWM), which Linux lets a process reset; where it does not, the peak since the process
    started, and `since_start` is true.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.since_start = False
        if self._cuda:
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)
        else:
            self.since_start = not _reset_resident_peak()

    def read(self) -> int:
        """Bytes."""
        if self._cuda:
            return max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
        return _resident_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


# Kibibytes on Linux, bytes on macOS.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _reset_resident_peak() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _resident_peak() -> int | None:
    """VmHWM in bytes; None where there is no such file."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
