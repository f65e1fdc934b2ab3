"""Open Dagster's home: where runs and events are recorded, shared by `gateau run` and the UI."""

import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dagster import DagsterInstance
from dagster._core.instance.ref import InstanceRef

from assets.runs.postgres_home import check_postgres, mended, place_of_postgres, with_postgres
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.failures import explained_by_system
from gateau_dagster.storage.local import check_regular, create_local, fill_with, replace_local

_OPENING = ".opening"
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
  module: assets.runs.run_launcher
  class: RunLauncher
"""


def home_of(config: Config) -> Path:
    """Return DAGSTER_HOME or a folder beside the configuration as an absolute path; it need not exist."""
    named = os.environ.get("DAGSTER_HOME") or config.work_folder / "dagster"
    return Path(os.path.expanduser(named)).absolute()  # noqa: PTH111  as Dagster does: ~nobody is a name like others


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
        if config.execution.postgres is not None:
            found = file.read_bytes()
            wanted = with_postgres(found, config.execution.postgres, file)
            if wanted != found:
                replace_local(file, partial(fill_with, data=wanted))
    except OSError as error:
        raise GateauError(
            f"Dagster's home {home} cannot be made: {error.strerror} ({error.filename}). Move away what is in its "
            "place, or name another folder in DAGSTER_HOME."
        ) from error
    return home


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Lock the home: two processes must not create the tables of a new database at once."""
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
            reference = mended(InstanceRef.from_dir(str(home)))
            _check_addressable(reference, home)
            check_postgres(reference, config, home)
            return _read(reference, place_of_postgres(reference, config, home))
    except GateauError:
        raise
    except Exception as error:  # YAML, Dagster, database and file system have their own types
        known = explained_by_system(error, f"use Dagster's home {home}")
        if known is not error and not isinstance(error, FileExistsError):  # the path is named below
            raise known from error
        raise GateauError(
            f"Dagster's home {home} cannot be used: {_reason(error)}. Correct or remove its "
            "dagster.yaml; where it is the records that are damaged, move its folders history and schedules away. Both "
            "are made anew, and what was computed is in the store."
        ) from error


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
            f"Dagster cannot keep its records in {folder}: with {found.group()!r} in it, the path leads elsewhere. "
            f"Name another folder in DAGSTER_HOME (now {home}); configuration and store may stay."
        )
    if folder and len(os.fsencode(folder)) > _LONGEST_PATH - _BELOW:
        raise GateauError(
            f"Dagster cannot keep its records in {folder}: SQLite takes no paths of more than {_LONGEST_PATH} bytes, "
            f"with the {_BELOW} of a run's own file. Name a shorter folder in DAGSTER_HOME; configuration and store "
            "may stay."
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
            f"{postgres}: Dagster's tables in PostgreSQL cannot be made or read: {_reason(error)}. Its user has to own "
            "the database, or to have the right to create tables in it."
        ) from error
    return instance


def _reason(error: Exception) -> str:
    told = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement to the database's message
    return " ".join(str(told).split())[:_SHOWN] or type(error).__name__
