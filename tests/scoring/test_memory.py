"""Telling out of memory from other errors, the CPU's own one included."""

import pytest
import torch

from gateau_dagster.scoring.memory import is_out_of_memory, out_of_memory_reason


def test_the_cpu_allocators_error_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.float32)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("CUDA out of memory")])
def test_other_spellings(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory")])
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_reason_names_tokens_and_advice() -> None:
    assert out_of_memory_reason(7, "do this") == "out of memory on a prompt of 7 tokens: do this"
