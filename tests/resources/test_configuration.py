"""The configuration as a resource: read once a run, and anew for the next."""

from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.config import SECTION
from gateau_dagster.resources.configuration import ConfigurationResource
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project


def test_an_edit_counts_for_the_next_run_and_not_for_this_one(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=2, shards=1)
    this_run = ConfigurationResource(config_file=str(file))
    assert this_run.config.selection.alpha is None and this_run.state().store.root == str(tmp_path / "store")
    change_config(file, selection={"alpha": 0.25})
    assert this_run.config.selection.alpha is None
    assert ConfigurationResource(config_file=str(file)).config.selection.alpha == 0.25


def test_without_a_file_it_is_the_demo_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEAU_CONFIG", "other.yaml")
    monkeypatch.chdir(tmp_path)
    for resource in (ConfigurationResource(), ConfigurationResource(config_file=f"demo:{tmp_path / 'gateau_demo'}")):
        config = resource.config
        assert SECTION.of(config) is not None
        assert config.folder == tmp_path / "gateau_demo"


def test_a_wrong_file_is_a_readable_error(tmp_path: Path) -> None:
    with refused("config.unreadable"):
        _ = ConfigurationResource(config_file=str(tmp_path / "none.yaml")).config


def test_a_pool_that_does_not_exist_is_refused_when_the_configuration_is_read(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=2, shards=1, execution={"pool": "cloud"})
    with pytest.raises(GateauError, match="no worker pool 'cloud'; there are processes"):
        _ = ConfigurationResource(config_file=str(file)).config
