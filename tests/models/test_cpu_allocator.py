"""Freed memory stays with the process while scoring lasts, and goes back to the system afterwards."""

import ctypes
import json
import platform
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gateau_dagster.models.cpu_allocator import retained_memory
from gateau_dagster.models.flops import Meter
from gateau_dagster.scoring.scorer import Request, score_samples
from tests.scoring.scored import scoring
from tests.tiny_models import loaded_model, samples

CPU = torch.device("cpu")
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


def test_an_error_gives_back(calls: list[str]) -> None:
    with pytest.raises(OSError, match="gone"), retained_memory(CPU):
        raise OSError("gone")
    assert calls == ["keep", "as before", "give back"]


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
    from gateau_dagster.models.cpu_allocator import retained_memory

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
