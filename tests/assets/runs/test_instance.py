"""Dagster's home: beside the configuration unless DAGSTER_HOME names another, and the user's file is kept."""

import os
import shutil
import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest

from gateau_dagster.assets.runs.history import recorded_history
from gateau_dagster.assets.runs.instance import open_instance, prepare_home
from gateau_dagster.config import Config
from tests.error_codes import refused


def test_beside_the_configuration(config: Config, tmp_path: Path) -> None:
    home = prepare_home(config)
    assert home == tmp_path / ".gateau" / "dagster"
    text = (home / "dagster.yaml").read_text()
    assert "run_monitoring" in text
    assert "enabled: false" in text, "no telemetry"
    with open_instance(config) as instance:
        pools = instance.get_concurrency_config().pool_config
        assert pools.default_pool_limit == 1 and pools.pool_granularity is not None
        assert pools.pool_granularity.value == "op"
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    prepare_home(config)
    assert (home / "dagster.yaml").read_text() == "telemetry:\n  enabled: false\n", "a file of the user's own"


@pytest.mark.parametrize("home", ["~/home", "$HOME/home"])
def test_where_the_environment_says(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """`~` is the user's home, as for Dagster itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DAGSTER_HOME", home.replace("$HOME", str(tmp_path)))
    assert prepare_home(config) == tmp_path / "home"


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_a_name_that_would_lead_the_records_elsewhere_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "homes" / name))
    with refused("dagster.home", match="DAGSTER_HOME"):
        open_instance(config)
    assert [folder.name for folder in (tmp_path / "homes").iterdir()] == [name]


@pytest.mark.parametrize("name", ["a b", "50%", "#1", "a&b=c", "é'\"\n"])
def test_other_names_are_as_good_as_any(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / name))
    with open_instance(config):
        assert (tmp_path / name / "history" / "runs.db").is_file()


@pytest.mark.parametrize(("length", "fits"), [(451, True), (452, False)])
def test_a_path_that_sqlite_does_not_take_is_refused(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, fits: bool
) -> None:
    """451 bytes are the most with which Dagster could open the file of a run."""
    home = f"{tmp_path / '/'.join(['n' * 100] * 3)}/"
    home += "n" * (length - len(home))
    monkeypatch.setenv("DAGSTER_HOME", home)
    outcome = nullcontext() if fits else refused("dagster.home", match="shorter")
    with outcome, open_instance(config) as instance:
        assert list(instance.all_logs(str(uuid.uuid4()))) == []


@pytest.mark.parametrize("name", ["dagster.yaml", ".opening"])
def test_a_pipe_in_its_place_is_not_waited_for(config: Config, tmp_path: Path, name: str) -> None:
    home = tmp_path / ".gateau" / "dagster"
    home.mkdir(parents=True)
    os.mkfifo(home / name)
    with refused("dagster.home", match="File exists"):
        open_instance(config)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dagster.yaml", b"{{{:"),
        ("dagster.yaml", b"- a list"),
        ("dagster.yaml", b"\xff\xfe\x00"),
        ("dagster.yaml", b"nonsense: 1"),
        ("history/runs.db", b"rubbish" * 1000),
        ("history/runs/index.db", b"rubbish" * 1000),
        ("schedules/schedules.db", b"rubbish" * 1000),
        ("history", b"a file in the way"),
    ],
)
def test_a_damaged_home_is_one_message(config: Config, name: str, content: bytes) -> None:
    home = prepare_home(config)
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_bytes(content)
    with refused("dagster.home_damaged", match=r"dagster\.yaml.* history") as failure:
        open_instance(config)
    assert str(home) in str(failure.value) and len(str(failure.value)) < 800


def test_a_folder_in_the_place_of_a_file_and_a_file_in_that_of_the_home(config: Config, tmp_path: Path) -> None:
    home = tmp_path / ".gateau" / "dagster"
    (home / "dagster.yaml").mkdir(parents=True)
    with refused("dagster.home", match="Is a directory"):
        open_instance(config)
    shutil.rmtree(home)
    home.write_text("")
    with refused("dagster.home", match="File exists"):
        open_instance(config)
    with refused("dagster.home", match="File exists"), recorded_history(config):
        pass
