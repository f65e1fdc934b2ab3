"""Dagster's event log in SQLite, kept open for a run.

Dagster makes a new SQLAlchemy engine for each event and closes the file after it, which writes SQLite's log back into
the file and compiles the same statements again: about a tenth of the CPU time of a run of hundreds of shards. It makes
one more, for each event with a tag, to ask whether the table of tags exists, and has the disk confirm both transactions
of each event. A process that dies loses nothing without that; a machine that does may lose the last records, and finds
them again in the store.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import DagsterInstance
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from sqlalchemy import Connection, Engine, StaticPool, create_engine
from sqlalchemy.event import listens_for


@contextmanager
def open_log(instance: DagsterInstance) -> Iterator[None]:
    """While it lasts, each file that this instance's event log writes stays open; other storages are as they are."""
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
    """The files by the name of their run; `index` is that of all runs."""

    def __init__(self, log: SqliteEventLogStorage) -> None:
        self._log = log
        self._engines: dict[str, Engine] = {}
        self._has_table, self._tables = log.has_table, set[str]()

    def has_table(self, table_name: str) -> bool:
        """In place of `SqliteEventLogStorage.has_table`: a table that is there stays."""
        if table_name not in self._tables and self._has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    @contextmanager
    def connection(self, shard: str) -> Iterator[Connection]:
        """In place of `SqliteEventLogStorage._connect`: a transaction, one at a time."""
        log = self._log
        with log._db_lock:
            engine = self._engine(shard)
            if shard not in log._initialized_dbs:
                log._initdb(engine)
                log._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _engine(self, shard: str) -> Engine:
        # Into a file that somebody has removed SQLite would go on to write without a word.
        if shard in self._engines and not Path(self._log.path_for_shard(shard)).exists():
            self._engines.pop(shard).dispose()
        if shard not in self._engines:
            engine = self._engines[shard] = create_engine(
                self._log.conn_string_for_shard(shard),
                poolclass=StaticPool,
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            )
            listens_for(engine, "connect")(_wait_for_no_disk)
        return self._engines[shard]

    def close(self) -> None:
        with self._log._db_lock:
            for engine in self._engines.values():
                engine.dispose()


def _wait_for_no_disk(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
