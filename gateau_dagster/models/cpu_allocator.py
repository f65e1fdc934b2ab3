"""Keep the CPU memory that a pass has used for the next pass, instead of returning it to the system.

glibc returns blocks of 32 MB and more as soon as they are free. The next pass requests them again, and the system fills
every page with zeros first. On two cores that takes a fifth of the scoring time.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

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

    Does nothing for a model on another device than the CPU, or if the C library is not glibc.
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
    """Return the running process's C library if it is glibc, else None."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
