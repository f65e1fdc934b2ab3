"""FlashAttention 3 is refused with its reason wherever it cannot run, and switched on once where it can."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gateau_dagster.models import devices
from gateau_dagster.models.devices import use_flash_attention_3
from tests.kit.error_codes import refused
from tests.training.builders import make_spec, run

HOPPER: dict[str, Any] = {"capability": (9, 0), "offered": ["FA3"], "spec": object()}


@pytest.fixture
def activated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were activated; nothing is."""
    names: list[str] = []
    monkeypatch.setattr(devices, "activate_flash_attention_impl", names.append)
    monkeypatch.setattr(devices, "current_flash_attention_impl", lambda: names[-1] if names else None)
    return names


def machine(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    has = HOPPER | changes
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: has["capability"])
    monkeypatch.setattr(devices, "list_flash_attention_impls", lambda: has["offered"])
    monkeypatch.setattr("importlib.util.find_spec", lambda _: has["spec"])


def test_it_is_switched_on_once(monkeypatch: pytest.MonkeyPatch, activated: list[str]) -> None:
    machine(monkeypatch)
    for _ in range(2):
        use_flash_attention_3(torch.device("cuda"), key="scoring.attention")
    assert activated == ["FA3"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capability": (8, 0)}, r"needs compute capability 9\.0, but this GPU has 8\.0"),
        ({"offered": ["FA4"]}, "does not offer it"),
        ({"spec": None}, "flash_attn_interface is not installed"),
    ],
)
def test_a_machine_without_it(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str) -> None:
    machine(monkeypatch, **changes)
    with refused("models.attention", rf"scoring\.attention: fa3 .*{reason}.*scoring\.attention: auto"):
        use_flash_attention_3(torch.device("cuda"), key="scoring.attention")


def test_kernels_that_do_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)

    def fail(_: str) -> None:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(devices, "activate_flash_attention_impl", fail)
    with refused("models.attention", "cannot be loaded .ImportError: undefined symbol"):
        use_flash_attention_3(torch.device("cuda"), key="training.attention")


def test_a_training_on_a_cpu_is_refused(tmp_path: Path) -> None:
    with refused("models.attention", r"training\.attention: fa3 .* the device is cpu"):
        run(make_spec(tmp_path, max_steps=1, attention="fa3"))
