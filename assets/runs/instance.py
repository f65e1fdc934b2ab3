"""Open Dagster's home: where runs and events are recorded, shared by `gateau run` and the UI."""

import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance

# Its settings are read before it opens a database, which would retry and log for long.
from dagster._core.instance.ref import InstanceRef

# The log of SQLite opens, checks and syncs its file for every event: three times the time of a run of 1,000 shards.
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sql import ScriptDirectory  # pyright: ignore[reportPrivateImportUsage]
from sqlalchemy import Connection, Engine, StaticPool, create_engine
from sqlalchemy.event import listens_for

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.resources.history import home_of
from gateau_dagster.storage.failures import explained_by_system
from gateau_dagster.storage.local import check_regular, create_local, fill_with, replace_local

# Dagster reads the files of its 90 migrations twice for every database, and every run has one: an eighth of a second.
ScriptDirectory.from_config = cache(ScriptDirectory.from_config)  # pyright: ignore[reportAttributeAccessIssue]

_OPENING = ".opening"
_BUSY_SECONDS = 30  # that a write waits for another process; Dagster's own figure
_SQLITE = "DagsterSqliteStorage"
_LONGEST_PATH = 504  # bytes; SQLite's own 512, less what it adds for its journal
_BELOW = len(f"/history/runs/{uuid.UUID(int=0)}.db")
_SHOWN = 300  # characters of a reason: Dagster adds the whole valid schema

_DAGSTER_YAML = """\
# Written once by gateau; yours to change.
telemetry:
  enabled: false
nux:                        # no request for an e-mail address over the first page
  enabled: false
concurrency:
  pools:
    granularity: op
    default_limit: 1        # steps of the pool `gpu` at a time, over all runs: one step uses all GPUs (scoring.workers)
run_monitoring:             # a run that does not start is ended; of those that died, the sensor `dead_runs` takes care
  enabled: true
  start_timeout_seconds: 300
  free_slots_after_run_end_seconds: 30
run_launcher:               # Dagster's own, which also terminates the runs of `gateau run`
  module: gateau_dagster.assets.runs.run_launcher
  class: RunLauncher
"""


def prepare_home(config: Config) -> Path:
    """Return `home_of`, created if needed, with a dagster.yaml if there is none.

    If `execution.postgres` is set, the file directs Dagster's own processes to that database, too.

    Raises:
        GateauError: the folder cannot be made, or its dagster.yaml names another database.
    """
    home = home_of(config)
    file = home / "dagster.yaml"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for name in (file, home / _OPENING):
            check_regular(name)  # opening a pipe would block
        create_local(file, _DAGSTER_YAML.encode())
        _rename_modules(file)
        if config.execution.postgres is not None:
            found = file.read_bytes()
            wanted = with_postgres(found, config.execution.postgres, file)
            if wanted != found:
                replace_local(file, partial(fill_with, data=wanted))
    except OSError as error:
        raise GateauError(
            "dagster.home",
            f"Dagster's home {home} cannot be created: {error.strerror} ({error.filename}). Move the file in its "
            "place, or name another folder in DAGSTER_HOME.",
        ) from error
    return home


def _rename_modules(file: Path) -> None:
    """Correct the names of this project's modules in a dagster.yaml that an earlier version wrote."""
    found = file.read_bytes()
    wanted = re.sub(rb"(?m)^(\s*module:\s*)(assets\.runs\.|resources\.postgres)", rb"\1gateau_dagster.\2", found)
    if wanted != found:
        replace_local(file, partial(fill_with, data=wanted))


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    # Two processes must not create the tables of a new database at once.
    with (home / _OPENING).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_instance(config: Config) -> DagsterInstance:
    """Open the instance in the home of the configuration.

    Raises:
        GateauError: its dagster.yaml is invalid, its records cannot be read, or their database cannot be reached.
    """
    home = prepare_home(config)
    os.environ["DAGSTER_HOME"] = str(home)
    try:
        with _one_at_a_time(home):
            reference = InstanceRef.from_dir(str(home))
            _check_addressable(reference, home)
            postgres = _postgres_place(reference, config, home)
            if postgres is not None and reference.storage_data is not None:
                _check_postgres(reference.storage_data.config_dict, postgres, config, home)
            return _read(reference, postgres)
    except GateauError:
        raise
    except Exception as error:  # YAML, Dagster, database and file system have their own types
        known = explained_by_system(error, f"use Dagster's home {home}")
        if known is not error and not isinstance(error, FileExistsError):  # the path is named below
            raise known from error
        raise GateauError(
            "dagster.home_damaged",
            f"Dagster's home {home} cannot be used: {_reason(error)}. Correct or remove its dagster.yaml. If its "
            "records are damaged, move its folders history and schedules to another place. Both are recreated, and "
            "the results stay in the store.",
        ) from error


@contextmanager
def open_log(instance: DagsterInstance) -> Iterator[None]:
    """Keep each file that this instance's SQLite event log writes open within the block; ignore other storages."""
    log = instance.event_log_storage
    if not isinstance(log, SqliteEventLogStorage):
        yield
        return
    files = _Files(log)
    log._connect, log.has_table = files.connection, files.has_table
    try:
        yield
    finally:
        del log._connect, log.has_table
        files.close()


class _Files:
    """The open files by the name of their run; `index` is the file of all runs."""

    def __init__(self, log: SqliteEventLogStorage) -> None:
        self._log = log
        self._engines: dict[str, Engine] = {}
        self._has_table, self._tables = log.has_table, set[str]()

    def has_table(self, table_name: str) -> bool:
        """Replace `SqliteEventLogStorage.has_table`, and remember a table that exists."""
        if table_name not in self._tables and self._has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    @contextmanager
    def connection(self, shard: str) -> Iterator[Connection]:
        """Replace `SqliteEventLogStorage._connect`: yield a transaction, one at a time."""
        log = self._log
        with log._db_lock:
            engine = self._engine(shard)
            if shard not in log._initialized_dbs:
                log._initdb(engine)
                log._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine(self, shard: str) -> Engine:
        # SQLite would silently go on writing into a file that somebody has removed.
        if shard in self._engines and not Path(self._log.path_for_shard(shard)).exists():
            self._engines.pop(shard).dispose()
        if shard not in self._engines:
            engine = self._engines[shard] = create_engine(
                self._log.conn_string_for_shard(shard),
                poolclass=StaticPool,
                connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            )
            listens_for(engine, "connect")(_wait_for_no_disk)
        return self._engines[shard]

    def close(self) -> None:
        with self._log._db_lock:
            for engine in self._engines.values():
                engine.dispose()


def _wait_for_no_disk(connection: Any, _: object) -> None:
    # Dagster's files have a write-ahead log, so this risks no damage. After a power failure the last events may be
    # missing. The store has the results, and the next run records them again.
    connection.execute("PRAGMA synchronous=NORMAL")


def records_folder(instance: DagsterInstance) -> Path | None:
    """Return the folder of all of an instance's records; None unless they are in SQLite files."""
    data = instance.get_ref().storage_data
    return Path(data.config_dict["base_dir"]) if data is not None and data.class_name == _SQLITE else None


def _check_addressable(reference: InstanceRef, home: Path) -> None:
    """Check that Dagster will find its records: it inserts their path into a URL without quoting.

    Raises:
        GateauError: the path leads elsewhere or is too long.
    """
    data = reference.storage_data
    folder = data.config_dict.get("base_dir") if data is not None and data.class_name == _SQLITE else None
    found = re.search(r"\?|%[0-9A-Fa-f]{2}", str(folder or ""))
    if found is not None:
        raise GateauError(
            "dagster.home",
            f"Dagster cannot keep its records in {folder}: {found.group()!r} in the path leads to another place. Name "
            f"another folder in DAGSTER_HOME (now {home}). Configuration and store may stay.",
        )
    if folder and len(os.fsencode(folder)) > _LONGEST_PATH - _BELOW:
        raise GateauError(
            "dagster.home",
            f"Dagster cannot keep its records in {folder}: SQLite opens paths of at most {_LONGEST_PATH} bytes, and a "
            f"run's own file needs {_BELOW}. Name a shorter folder in DAGSTER_HOME. Configuration and store may stay.",
        )


def _read(reference: InstanceRef, postgres: str | None) -> DagsterInstance:
    """Return the instance after reading its records. `postgres`: the setting that names PostgreSQL, or None.

    Raises:
        GateauError: the records in PostgreSQL cannot be used. For other storages any error is raised.
    """
    try:
        instance = DagsterInstance.from_ref(reference)
        instance.get_runs(limit=1)
        instance.all_asset_keys()  # a different file from the runs
    except Exception as error:
        if postgres is None:
            raise
        raise GateauError(
            "dagster.tables",
            f"{postgres}: Dagster's tables in PostgreSQL cannot be created or read: {_reason(error)}. Let its user "
            "own the database, or grant the right to create tables.",
        ) from error
    return instance


def _reason(error: Exception) -> str:
    told = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement to the database's message
    return " ".join(str(told).split())[:_SHOWN] or type(error).__name__


# The second is the name that earlier versions wrote into dagster.yaml.
_POSTGRES = {("dagster_postgres", "DagsterPostgresStorage"), ("gateau_dagster.resources.postgres", "PostgresStorage")}
_STORAGES = {"storage", "run_storage", "event_log_storage", "schedule_storage"}
_URL = ("postgres_url", "env")
_STORAGE_YAML = """\
storage:                    # by execution.postgres; the URL itself is in the environment only
  postgres:
    postgres_url:
      env: """


def with_postgres(content: bytes, variable: str, file: Path) -> bytes:
    """Return a dagster.yaml with the database whose URL is in an environment variable; unchanged if it has it.

    Raises:
        GateauError: the file names another storage.
    """
    try:
        found: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return content  # Dagster says what is wrong with it
    if found is None:
        found = {}
    if not isinstance(found, dict):
        return content
    if _STORAGES.isdisjoint(found):
        return content.rstrip(b"\n") + f"\n{_STORAGE_YAML}{variable}\n".encode()
    storage = found.get("storage")
    if variable not in (_at(storage, "postgres", *_URL), _at(storage, "custom", "config", *_URL)):
        raise GateauError(
            "dagster.storage",
            f"execution.postgres: the storage in {file} is not the database of {variable}. Remove that storage, or "
            "execution.postgres.",
        )
    return content


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _postgres_place(reference: InstanceRef, config: Config, home: Path) -> str | None:
    """Return the setting that puts an instance on PostgreSQL, or None if it is not there."""
    data = reference.storage_data
    if data is None or (data.module_name, data.class_name) not in _POSTGRES:
        return None
    return "execution.postgres" if config.execution.postgres else f"{home / 'dagster.yaml'}: storage"


def _check_postgres(storage: Mapping[str, Any], place: str, config: Config, home: Path) -> None:
    """Check the packages and the server of a storage in PostgreSQL, which is configured at `place`.

    Raises:
        GateauError: something is missing, or the server rejects this process.
    """
    variable = config.execution.postgres
    for name in _variables(storage):
        if name not in os.environ:
            what = "It holds the database's URL, which begins with postgresql://." if name == variable else "Set it."
            raise GateauError("config.variable_missing", f"{place}: the environment variable {name} is not set. {what}")
    try:
        from gateau_dagster.resources.postgres import check_server

        check_server(_resolved(storage), place=place, source=variable or str(home / "dagster.yaml"))
    except ImportError as error:
        raise GateauError(
            "execution.postgres_package",
            f"{place}: the packages for PostgreSQL are not installed ({error}): pip install 'gateau-dagster[postgres]'",
        ) from error


def _resolved(value: Any) -> Any:
    """Return a part of dagster.yaml with the values of its environment variables."""
    if not isinstance(value, dict):
        return value
    if [*value] == ["env"]:
        return os.environ[value["env"]]
    return {name: _resolved(inner) for name, inner in value.items()}


def _variables(value: Any) -> Iterator[str]:
    """Yield the environment variables that a part of dagster.yaml names."""
    if isinstance(value, dict):
        if isinstance(name := value.get("env"), str) and len(value) == 1:
            yield name
        for inner in value.values():
            yield from _variables(inner)
