"""Test that a step without an answer from Ray's head node fails at once: Ray itself would try for many minutes."""

import re
import socket
from pathlib import Path

import pytest

from gateau_dagster.config.execution import RayConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.resources.pools import on_ray
from gateau_dagster.resources.pools.on_ray import connected


def refused(address: str) -> str:
    with pytest.raises(GateauError) as caught, connected(RayConfig(address=address, workers=1, gpus=0)):
        pass
    return str(caught.value)


def test_another_service_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dashboard's port in the place of the head's, say."""
    monkeypatch.setattr(on_ray, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("", 0)) as server:
        assert "not the head of a Ray cluster" in refused(f"127.0.0.1:{server.getsockname()[1]}")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Move the file in which Ray notes its last cluster, so that other clusters of this machine are not seen."""
    from ray._private import services

    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


def test_auto_finds_a_cluster_that_has_ended(noted: Path) -> None:
    """The note stays where the head was killed."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    noted.write_text(f"127.0.0.1:{port}")
    assert re.search(rf"no Ray cluster answers at [\d.]+:{port}, where auto .*refused", refused("auto"))


def test_auto_finds_none(noted: Path) -> None:
    assert not noted.exists()
    assert "auto finds no Ray cluster that contains this machine" in refused("auto")
