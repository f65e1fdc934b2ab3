"""The example that makes theta_B from theta_A: valid settings, and recall at distances where theta_A is at chance."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gateau_dagster.pipeline.project import load_project
from tests.project import ROOT, command_environment

FOLDER = ROOT / "examples" / "homologous"


@pytest.fixture
def example() -> ModuleType:
    """The script as a module under a name of its own: other examples have a run.py, too."""
    spec = importlib.util.spec_from_file_location("homologous_example", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_settings_are_valid(example: ModuleType) -> None:
    config = load_project(example.SETTINGS)
    options = config.models["long"].homologous
    assert config.homologous_models == ["long"] and options is not None and options.tokens is not None
    assert options.tokens * options.long_share < example.LONG_TOKENS, "no text occurs twice"
    assert options.tokens * (1 - options.long_share) < example.SHORT_TOKENS
    assert max(example.LONG_LENGTHS) == options.length


@pytest.mark.long
@pytest.mark.timeout(1800)  # two CPU minutes, on cores that may be shared
def test_theta_b_recalls_facts_at_distances_where_theta_a_is_at_chance(example: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "run.py"), "--out", str(tmp_path)]
    first = subprocess.run(command, cwd=tmp_path, env=command_environment(), capture_output=True, text=True, check=True)
    assert "✓ homologous_model/long" in first.stdout
    found = example.recalls(tmp_path / "gateau.yaml", 100)
    assert found["theta_A"][128] >= 0.9
    for distance in (1000, 1500):
        assert found["theta_A"][distance] <= 0.3, "chance is 1/8"
        assert found["theta_B"][distance] >= 0.9
    again = subprocess.run(command, cwd=tmp_path, env=command_environment(), capture_output=True, text=True, check=True)
    assert "✓" not in again.stdout
