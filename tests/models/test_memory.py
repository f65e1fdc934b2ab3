"""Telling out of memory from other errors, the CPU's own one included."""

import pytest
import torch

from gateau_dagster.models.memory import is_out_of_memory, out_of_memory_reason, unless_out_of_memory


def test_the_cpu_allocators_error_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.float32)
    assert is_out_of_memory(caught.value)


_TEXTS = ["CUDA out of memory", "std::bad_alloc", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"]


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("x"), *map(RuntimeError, _TEXTS)])
def test_other_spellings(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory")])
def test_other_errors(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_what_fits_is_returned_and_other_errors_are_raised() -> None:
    assert unless_out_of_memory(lambda: 7) == 7
    assert unless_out_of_memory(lambda: torch.empty(2**60)) is None
    with pytest.raises(RuntimeError, match="expand"):
        unless_out_of_memory(lambda: torch.ones(2).expand(3))


def test_reason_names_tokens_and_advice() -> None:
    assert out_of_memory_reason(7, "do this") == "out of memory on a prompt of 7 tokens: do this"
