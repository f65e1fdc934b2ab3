"""Out of memory, whichever way torch says it."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has a type for it; the CPU allocator raises a RuntimeError that only its text tells apart."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def out_of_memory_reason(tokens: int, advice: str) -> str:
    """The reason written beside a sample that did not fit."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return f"out of memory on a prompt of {tokens} tokens: {advice}"
