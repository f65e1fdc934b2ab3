"""Dagster's home is where it is said, refused where it cannot be used, and its log stays open during a run."""

import os
import shutil
import uuid
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from sqlalchemy.exc import OperationalError

from gateau_dagster.assets.runs.history import read_history
from gateau_dagster.assets.runs.instance import open_instance, open_log, prepare_home
from gateau_dagster.config import Config
from tests.kit.error_codes import refused


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
    with refused("dagster.home", match="File exists"):
        read_history(config, [])


PARTS = dg.StaticPartitionsDefinition(["a", "b", "c"])


@dg.asset(partitions_def=PARTS)
def table(context: dg.AssetExecutionContext) -> None:
    context.add_output_metadata({"rows": 1})


def made(instance: dg.DagsterInstance, parts: str) -> list[str]:
    """Types of the events of runs of these partitions."""
    results = [dg.materialize([table], instance=instance, partition_key=part) for part in parts]
    return [event.event_type_value for result in results for event in result.all_events]


def stored(instance: dg.DagsterInstance) -> list[tuple[str, list[str]]]:
    """Return the types of each run's events as a new reader finds them, the oldest run first."""
    runs = reversed(instance.get_runs())
    return [
        (run.status.value, [e.dagster_event.event_type_value for e in instance.all_logs(run.run_id) if e.dagster_event])
        for run in runs
    ]


def sqlite_log(instance: dg.DagsterInstance) -> SqliteEventLogStorage:
    log = instance.event_log_storage
    assert isinstance(log, SqliteEventLogStorage)
    return log


def open_databases() -> list[str]:
    return [file.path for file in psutil.Process().open_files() if "/history/runs/" in file.path]


def test_what_is_recorded_is_what_dagster_records(config: Config) -> None:
    with open_instance(config) as instance:
        made(instance, "a")
        assert not open_databases()
        with open_log(instance):
            made(instance, "b")
            assert open_databases()
            with open_instance(config) as reader:  # the UI, beside the run
                assert len(stored(reader)) == 2
            made(instance, "a")
        assert not open_databases()
    with open_instance(config) as reader:
        [before, *kept] = stored(reader)
        assert kept == [before] * 2 and "ASSET_MATERIALIZATION" in before[1]
        assert reader.get_materialized_partitions(dg.AssetKey("table")) == {"a", "b"}
        assert reader.get_latest_materialization_event(dg.AssetKey("table")) is not None


def test_a_failed_transaction_leaves_nothing_and_the_next_goes_on(config: Config) -> None:
    with open_instance(config) as instance, open_log(instance):
        made(instance, "a")
        with pytest.raises(ZeroDivisionError), sqlite_log(instance).index_connection() as connection:
            connection.exec_driver_sql("delete from event_logs")
            raise ZeroDivisionError
        made(instance, "b")
        assert instance.get_materialized_partitions(dg.AssetKey("table")) == {"a", "b"}


def test_records_that_somebody_removes_are_missed_at_once(config: Config) -> None:
    with open_instance(config) as instance, open_log(instance):
        made(instance, "a")
        for file in Path(sqlite_log(instance).path_for_shard("index")).parent.glob("index.db*"):
            file.unlink()
        with pytest.raises(OperationalError, match="no such table"):
            instance.get_materialized_partitions(dg.AssetKey("table"))


def test_no_disk_is_waited_for_while_it_is_open_and_after_it_as_before(config: Config) -> None:
    """PRAGMA synchronous: 1 is NORMAL, 2 FULL."""
    with open_instance(config) as instance:

        def synchronous() -> int:
            with sqlite_log(instance).index_connection() as connection:
                return connection.exec_driver_sql("PRAGMA synchronous").scalar()

        assert synchronous() == 2
        with open_log(instance):
            assert synchronous() == 1
        assert synchronous() == 2


def test_dagster_is_asked_for_a_table_until_it_is_there(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = {"tags": False}, list[str]()

    def has_table(self: SqliteEventLogStorage, name: str) -> bool:
        asked.append(name)
        return answers[name]

    monkeypatch.setattr(SqliteEventLogStorage, "has_table", has_table)
    with open_instance(config) as instance:
        log = sqlite_log(instance)
        with open_log(instance):
            found = [log.has_table("tags"), log.has_table("tags")]
            answers["tags"] = True
            found += [log.has_table("tags"), log.has_table("tags"), log.has_table("tags")]
        assert found == [False, False, True, True, True] and asked == ["tags"] * 3
        assert log.has_table("tags") and len(asked) == 4, "afterwards Dagster's own answers"
