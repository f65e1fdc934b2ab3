"""The peak is that of the piece that is measured, as far as the system lets a process forget an earlier one."""

import numpy as np
import pytest
import torch

from gateau_dagster.models import memory as peak_memory
from gateau_dagster.models.memory import PeakMemory

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

    monkeypatch.setattr(peak_memory, "_reset_resident_peak", refuse)
    monkeypatch.setattr(peak_memory, "_resident_peak", lambda: None)
    found = PeakMemory(_CPU)
    assert found.since_start and found.read() > 50 * 2**20
