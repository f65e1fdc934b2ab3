"""The CPU's allocator: memory that a pass has used is retained for the next, instead of going back to the system.

glibc returns blocks of 32 MB and more as soon as they are free. The next pass asks for them again, and the system
fills every page with zeros before it hands it out: a fifth of the time of scoring on two cores.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

# Options of mallopt, from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
# No padding of what is asked of the system: near a limit it would fail the smallest request.
_RETAIN = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1}
# Once set, glibc no longer adapts the thresholds: these are what it arrives at by itself where blocks are large.
_AFTERWARDS = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26}

_lock = Lock()
_users = 0


@contextmanager
def retained_memory(device: torch.device) -> Iterator[None]:
    """The process retains what is freed inside for later allocations inside; afterwards the system gets it back.

    Does nothing for a model on another device than the CPU, nor where the C library is not glibc.
    """
    libc = _glibc() if device.type == "cpu" else None
    if libc is None:
        yield
        return
    _enter(libc)
    try:
        yield
    finally:
        _leave(libc)


def _enter(libc: ctypes.CDLL) -> None:
    global _users  # noqa: PLW0603
    with _lock:
        _users += 1
        if _users == 1:
            _set(libc, _RETAIN)


def _leave(libc: ctypes.CDLL) -> None:
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if _users == 0:
            _set(libc, _AFTERWARDS)
            libc.malloc_trim(ctypes.c_size_t(0))


def _set(libc: ctypes.CDLL, options: dict[int, int]) -> None:
    for option, value in options.items():
        libc.mallopt(option, value)


def _glibc() -> ctypes.CDLL | None:
    """The running process's C library, if it is glibc."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
