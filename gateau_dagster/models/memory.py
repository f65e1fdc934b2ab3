"""Handle device memory: detect that it is full, bound the batches, and measure its use."""

# Memory decides here how long a context can be and how fast a CPU scores. No estimate replaces a failed attempt: what
# fits depends on other processes, fragmentation and kernels. So the code tries, halves, and remembers the bound.
#
# The price of a failure is one pass and a collection of garbage. `TokenBudget` makes it rare: a bound holds for all
# later batches of the model, and only shrinks.
#
# `retained_memory` is for the CPU only. A GPU's allocator of torch keeps its blocks anyway. The system sees the
# retained memory as used, so it is given back after the work.

import ctypes
import gc
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

# Options of mallopt, from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# Do not pad requests to the system: near a memory limit, padding would make the smallest request fail.
_RETAIN = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
# Once set, glibc no longer adapts the thresholds: these are the values it reaches by itself with large blocks.
_AFTERWARDS = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26}

_lock = Lock()
_users = 0


@contextmanager
def retained_memory(device: torch.device) -> Iterator[None]:
    """Retain memory freed inside the context for later allocations inside it; return it to the system afterwards.

    glibc returns blocks of 32 MB and more as soon as they are free. The system fills every page with zeros when the
    next pass requests them. On two cores that takes a fifth of the scoring time. Does nothing for a model on another
    device than the CPU, or if the C library is not glibc.
    """
    # Not every C library has mallopt with these options: musl and macOS are left alone.
    libc = ctypes.CDLL(None) if device.type == "cpu" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        yield
        return
    global _users  # noqa: PLW0603
    with _lock:
        _users += 1
        # Options hold for the process. The last user restores them, since another thread may score at the same time.
        if _users == 1:
            for option, value in _RETAIN.items():
                libc.mallopt(option, value)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                for option, value in _AFTERWARDS.items():
                    libc.mallopt(option, value)
                libc.malloc_trim(ctypes.c_size_t(0))


_Result = TypeVar("_Result")
_TEXTS = ("can't allocate memory", "out of memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is full.

    CUDA has a type for it; the CPU allocator raises a RuntimeError that only its message identifies.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # The words are those of torch's CPU allocator, of C++ and of cuBLAS. None of them raises a type that says so.
    text = str(error)
    return isinstance(error, RuntimeError) and any(part in text for part in _TEXTS)


def unless_out_of_memory(run: Callable[[], _Result]) -> _Result | None:
    """Return the result of `run`, or None with its memory released if memory is full; raise other errors."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Release only here: the error's traceback, now gone, held every frame of the pass and so every tensor in it.
    release_memory()
    return None


def release_memory() -> None:
    """Release the memory of unreachable cycles and of the device's cache, so that a smaller batch finds it free."""
    # Cycles first: their tensors hold blocks that the cache could otherwise not give back.
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def out_of_memory_reason(tokens: int, advice: str) -> str:
    """Return the reason recorded with a sample that did not fit."""
    return f"out of memory on a prompt of {tokens} tokens: {advice}"


# The bound after a failure, kept while the model is loaded: the next shard does not try larger batches again.
_fitting: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


class TokenBudget:
    """The bound on a batch's tokens for one model; it only shrinks.

    It does not grow back: a batch half as large costs a few per cent of speed. Every attempt at the larger one costs a
    whole pass and fragments the device's memory.
    """

    def __init__(self, model: nn.Module, allowed: int) -> None:
        assert allowed > 0
        self._model = model
        self._allowed = allowed

    @property
    def tokens(self) -> int:
        """Return the number of tokens that a batch of several prompts may hold."""
        return min(self._allowed, _fitting.get(self._model, self._allowed))

    def halve(self, failed: int) -> None:
        """Halve the bound after a batch of `failed` tokens did not fit."""
        # Half of what failed, not of what was allowed: the failed batch may have been far below the bound.
        _fitting[self._model] = max(1, min(failed, self.tokens) // 2)


_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"


class PeakMemory:
    """The peak memory use since creation.

    On CUDA it is `torch.cuda.max_memory_allocated`, of the fullest GPU if a model is spread over several. On the CPU it
    is the peak of the process's resident set (VmHWM), which Linux lets a process reset. If it cannot be reset, it is
    the peak since the process started, and `since_start` is true.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.since_start = False
        if self._cuda:
            # All GPUs, as a model with device_map is on several. Only the fullest one limits what fits.
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)
        else:
            self.since_start = not _reset_resident_peak()

    def read(self) -> int:
        """Return the peak in bytes."""
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
    """Return VmHWM in bytes; None if there is no such file."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
