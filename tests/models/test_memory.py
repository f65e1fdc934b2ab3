"""Device memory: what is out of memory, how large a batch may be, what the peak was."""

import ctypes
import gc
import json
import platform
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.models import memory
from gateau_dagster.models.devices import matrix_product_speed, resolve_device, worker_devices
from gateau_dagster.models.loaded import Meter
from gateau_dagster.models.memory import (
    PeakMemory,
    TokenBudget,
    is_out_of_memory,
    out_of_memory_reason,
    retained_memory,
    unless_out_of_memory,
)
from gateau_dagster.scoring.scorer import Request, score_samples
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples
from tests.scoring.builders import scoring

CPU = torch.device("cpu")
_TEXTS = ["CUDA out of memory", "std::bad_alloc", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"]


def test_errors_of_too_little_memory_are_told_from_others() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.float32)
    for error in (caught.value, MemoryError(), torch.OutOfMemoryError("x"), *map(RuntimeError, _TEXTS)):
        assert is_out_of_memory(error), error
    for error in (RuntimeError("shape mismatch"), ValueError("out of memory")):
        assert not is_out_of_memory(error), error


def test_what_fits_is_returned_and_other_errors_are_raised() -> None:
    assert unless_out_of_memory(lambda: 7) == 7
    assert unless_out_of_memory(lambda: torch.empty(2**60)) is None
    with pytest.raises(RuntimeError, match="expand"):
        unless_out_of_memory(lambda: torch.ones(2).expand(3))
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


def test_the_peak_of_the_resident_set_sees_what_is_held_and_let_go() -> None:
    before = PeakMemory(CPU)
    held = np.ones(_BYTES, dtype=np.uint8)
    held.sum()
    del held
    peak = before.read()
    after = PeakMemory(CPU)
    if after.since_start:
        assert after.read() >= peak
    else:
        assert peak - after.read() > 0.8 * _BYTES


def test_a_system_that_does_not_reset_it_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_reset_resident_peak", lambda: False)
    monkeypatch.setattr(memory, "_resident_peak", lambda: None)
    found = PeakMemory(CPU)
    assert found.since_start and found.read() > 50 * 2**20


M_MMAP_MAX = -4  # <malloc.h>


class Library:
    """A C library that only writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def gnu_get_libc_version(self) -> bytes:
        return b"2.99"

    def mallopt(self, option: int, value: int) -> None:
        if option == M_MMAP_MAX:
            self.calls.append("keep" if value == 0 else "as before")

    def malloc_trim(self, _: ctypes.c_size_t) -> None:
        self.calls.append("give back")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the C library, which does nothing."""
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    return library.calls


def test_the_last_of_several_users_gives_back(calls: list[str]) -> None:
    with retained_memory(CPU):
        with retained_memory(CPU):
            assert calls == ["keep"]
        assert calls == ["keep"]
    assert calls == ["keep", "as before", "give back"]
    calls.clear()
    with pytest.raises(OSError, match="gone"), retained_memory(CPU):
        raise OSError("gone")
    assert calls == ["keep", "as before", "give back"], "after an error, too"


def test_scoring_that_is_closed_early_gives_back(calls: list[str]) -> None:
    def requests() -> Iterator[Request]:
        for sample in samples():
            yield Request(sample=sample, perplexity=True, cam=False)

    loaded = loaded_model("llama")
    made = score_samples(loaded, requests(), max_length=4096, scoring=scoring(batch_tokens=1), meter=Meter())
    assert calls == []
    next(made)
    assert calls == ["keep"]
    made.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert calls == ["keep", "as before", "give back"]


def test_another_device_or_library_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with retained_memory(torch.device("cuda")):
        pass
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with retained_memory(CPU):
        pass
    assert calls == []


# Touches 300 MB, frees them, and looks at the resident set: before, while it is kept, and after.
_SCRIPT = """
    import json
    import torch
    from gateau_dagster.models.memory import retained_memory

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000

    def use():
        blocks = [torch.ones(25_000_000) for _ in range(3)]
        del blocks

    use()
    seen = [resident()]
    for _ in range(2):
        with retained_memory(torch.device("cpu")):
            use()
            seen.append(resident())
        seen.append(resident())
    print(json.dumps(seen))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/status").exists(), reason="needs glibc on Linux"
)
def test_the_system_gets_the_memory_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT)], capture_output=True, text=True, check=True, timeout=120
    )
    before, kept, between, again, after = json.loads(done.stdout)
    assert min(kept, again) > before + 250, "300 MB stay"
    assert max(between, after) < before + 50, "and are given back"


def test_the_device_of_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    with refused("scoring.device", "cuda:1.*0.*CUDA"):
        resolve_device("cuda:1")
    with refused("scoring.device", "'gpu0'"):
        resolve_device("gpu0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((3, 7)[index], 8))
    assert resolve_device("auto") == torch.device("cuda:1"), "the one with more free memory"

    def too_full_to_ask(index: int) -> tuple[int, int]:
        if index == 1:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return 3, 8

    monkeypatch.setattr(torch.cuda, "mem_get_info", too_full_to_ask)
    assert resolve_device("auto") == torch.device("cuda:0"), "a full one has none"
    assert resolve_device("cuda:0").index == 0
    with refused("scoring.device", "cuda:2"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "devices"),
    [
        (0, "auto", "auto", ["auto"]),
        (0, 2, "auto", ["cpu", "cpu"]),
        (0, 3, "cpu", ["cpu"] * 3),
        (1, "auto", "auto", ["auto"]),
        (4, "auto", "auto", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (4, "auto", "cuda:1", ["cuda:1"]),
        (4, "auto", "cuda", ["cuda"]),
        (4, "auto", "cpu", ["cpu"]),
        (2, 3, "auto", ["cuda:0", "cuda:1", "cuda:0"]),
        (2, 2, "cuda", ["cuda:0", "cuda:1"]),
        (2, 2, "cuda:1", ["cuda:1", "cuda:1"]),
        (2, 1, "auto", ["auto"]),
    ],
)
def test_devices(monkeypatch: pytest.MonkeyPatch, gpus: int, workers: Any, device: str, devices: list[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert worker_devices(ScoringConfig(workers=workers), device) == devices


def test_a_device_map_needs_no_workers_and_excludes_a_device_of_the_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for workers in ("auto", 1):
        assert worker_devices(ScoringConfig(device_map="auto", workers=workers), "auto") == ["auto"]
    with refused("scoring.device_map", "device_map.*'cuda:1'"):
        worker_devices(ScoringConfig(device_map="auto"), "cuda:1")


def test_the_speed_of_this_machine_is_plausible_and_its_threads_stay() -> None:
    threads = torch.get_num_threads()
    assert 1e7 < (matrix_product_speed("cpu", "float32") or 0.0) < 1e15
    assert torch.get_num_threads() == threads


def test_without_memory_for_a_product_no_speed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    assert matrix_product_speed.__wrapped__("cpu", "float32") is None
