"""The event log that stays open for a run holds what Dagster's own would, and nothing of it stays open afterwards."""

from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from sqlalchemy.exc import OperationalError

from gateau_dagster.assets.runs.instance import open_instance, open_log
from gateau_dagster.config import Config

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
