"""Device memory: what is out of memory, how large a batch may be, what the peak was."""

import gc
import weakref

import numpy as np
import pytest
import torch

from gateau_dagster.models import memory
from gateau_dagster.models.memory import (
    PeakMemory,
    TokenBudget,
    is_out_of_memory,
    out_of_memory_reason,
    unless_out_of_memory,
)
from tests.tiny_models import loaded_model


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


def test_it_halves_what_failed_and_never_grows() -> None:
    loaded = loaded_model("llama")
    budget = TokenBudget(loaded.model, 1000)
    assert budget.tokens == 1000
    budget.halve(900)
    assert budget.tokens == 450
    budget.halve(900)  # a failure of an older, larger batch is no reason to grow
    assert budget.tokens == 225
    for _ in range(20):
        budget.halve(budget.tokens)
    assert budget.tokens == 1


def test_it_is_remembered_with_the_model_and_forgotten_with_it() -> None:
    loaded = loaded_model("llama")
    TokenBudget(loaded.model, 1000).halve(1000)
    assert TokenBudget(loaded.model, 1000).tokens == 500
    assert TokenBudget(loaded.model, 300).tokens == 300
    assert TokenBudget(loaded_model("llama").model, 1000).tokens == 1000
    model = weakref.ref(loaded.model)
    del loaded
    gc.collect()
    assert model() is None


_BYTES = 200 * 2**20
_CPU = torch.device("cpu")


def test_the_peak_of_the_resident_set_sees_what_is_held_and_let_go() -> None:
    before = PeakMemory(_CPU)
    held = np.ones(_BYTES, dtype=np.uint8)
    held.sum()
    del held
    peak = before.read()
    after = PeakMemory(_CPU)
    if after.since_start:
        assert after.read() >= peak
    else:
        assert peak - after.read() > 0.8 * _BYTES


def test_a_system_that_does_not_reset_it_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        return False

    monkeypatch.setattr(memory, "_reset_resident_peak", refuse)
    monkeypatch.setattr(memory, "_resident_peak", lambda: None)
    found = PeakMemory(_CPU)
    assert found.since_start and found.read() > 50 * 2**20
