"""dagster.yaml of the example against dagster-ray's own class, where it is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from dagster._core.instance.ref import InstanceRef

from tests.examples.deployment.compose_file import COMPOSE, DEPLOYMENT

EXAMPLE = DEPLOYMENT / "dagster_ray" / "dagster.yaml"


def test_all_but_the_launcher_is_that_of_compose() -> None:
    ours, compose = (yaml.safe_load(file.read_text()) for file in (EXAMPLE, COMPOSE / "dagster.yaml"))
    assert {**ours, "run_launcher": None} == {**compose, "run_launcher": None}


@pytest.mark.skipif(find_spec("dagster_ray") is None, reason="not installed: pip install dagster-ray==0.4.8")
def test_dagster_ray_takes_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_bytes(EXAMPLE.read_bytes())
    launcher = InstanceRef.from_dir(str(tmp_path)).run_launcher
    assert getattr(launcher, "address", None) == "http://ray-head:8265"
