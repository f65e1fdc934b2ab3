"""Dagster's home: beside the configuration unless DAGSTER_HOME names another, and the user's file is kept."""

from pathlib import Path

import pytest

from assets.runs.instance import open_instance, prepare_home
from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import load_project
from tests.project import make_project


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DAGSTER_HOME", "")
    return load_project(make_project(tmp_path, samples=2, shards=1))


def test_beside_the_configuration(config: Config, tmp_path: Path) -> None:
    assert prepare_home(config) == tmp_path / ".gateau" / "dagster"
    text = (tmp_path / ".gateau" / "dagster" / "dagster.yaml").read_text()
    assert "run_monitoring" in text
    assert "enabled: false" in text, "no telemetry"


def test_where_the_environment_says(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    assert prepare_home(config) == tmp_path / "home"


def test_a_file_of_the_users_own_is_kept(config: Config, tmp_path: Path) -> None:
    file = tmp_path / ".gateau" / "dagster" / "dagster.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("telemetry:\n  enabled: false\n")
    prepare_home(config)
    assert file.read_text() == "telemetry:\n  enabled: false\n"


def test_the_pool_has_one_slot_by_default(config: Config) -> None:
    with open_instance(config) as instance:
        pools = instance.get_concurrency_config().pool_config
        assert pools.default_pool_limit == 1
        assert pools.pool_granularity is not None
        assert pools.pool_granularity.value == "op"
