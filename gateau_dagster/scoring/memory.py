"""Out of memory, whichever way torch says it, and how to go on after it."""

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

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
