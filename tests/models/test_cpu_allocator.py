"""Freed memory stays with the process while scoring lasts, and goes back to the system afterwards."""

import ctypes
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gateau_dagster.models import cpu_allocator as module
from gateau_dagster.models.cpu_allocator import reused_memory
from gateau_dagster.models.flops import Meter
from gateau_dagster.scoring.scorer import Request, score_samples
from tests.scoring.builders import loaded_model, samples
from tests.scoring.scored import scoring

CPU = torch.device("cpu")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a C library that does nothing."""
    said: list[str] = []

    class Library:
        def malloc_trim(self, _: ctypes.c_size_t) -> None:
            said.append("give back")

    names = {id(module._KEEP): "keep", id(module._AFTERWARDS): "as before"}
    monkeypatch.setattr(module, "_glibc", Library)
    monkeypatch.setattr(module, "_set", lambda _, options: said.append(names[id(options)]))
    return said


def test_the_last_of_several_users_gives_back(calls: list[str]) -> None:
    with reused_memory(CPU):
        with reused_memory(CPU):
            assert calls == ["keep"]
        assert calls == ["keep"]
    assert calls == ["keep", "as before", "give back"]
    assert module._users == 0


def test_an_error_gives_back(calls: list[str]) -> None:
    with pytest.raises(OSError, match="gone"), reused_memory(CPU):
        raise OSError("gone")
    assert calls == ["keep", "as before", "give back"] and module._users == 0


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
    assert calls == ["keep", "as before", "give back"] and module._users == 0


def test_another_device_or_library_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with reused_memory(torch.device("cuda")):
        pass
    monkeypatch.setattr(module, "_glibc", lambda: None)
    with reused_memory(CPU):
        pass
    assert calls == []


# Touches 300 MB, frees them, and looks at the resident set: before, while it is kept, and after.
_SCRIPT = """
    import json
    import torch
    from gateau_dagster.models.cpu_allocator import reused_memory

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000

    def use():
        blocks = [torch.ones(25_000_000) for _ in range(3)]
        del blocks

    use()
    seen = [resident()]
    for _ in range(2):
        with reused_memory(torch.device("cpu")):
            use()
            seen.append(resident())
        seen.append(resident())
    print(json.dumps(seen))
"""


@pytest.mark.skipif(module._glibc() is None or not Path("/proc/self/status").exists(), reason="needs glibc on Linux")
def test_the_system_gets_the_memory_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT)], capture_output=True, text=True, check=True, timeout=120
    )
    before, kept, between, again, after = json.loads(done.stdout)
    assert min(kept, again) > before + 250, "300 MB stay"
    assert max(between, after) < before + 50, "and are given back"
