"""Dagster's own home: where runs and events are recorded, shared by `gateau run` and the UI."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterInstance

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.storage.local import create_local

_SHOWN = 300  # characters of a reason: Dagster adds all that would be right

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
"""


def prepare_home(config: Config) -> Path:
    """DAGSTER_HOME, or a folder beside the configuration; with a dagster.yaml if there is none.

    Raises:
        GateauError: it cannot be made.
    """
    home = Path(os.environ.get("DAGSTER_HOME") or config.work_folder / "dagster").absolute()
    try:
        home.mkdir(parents=True, exist_ok=True)
        create_local(home / "dagster.yaml", _DAGSTER_YAML.encode())
    except OSError as error:
        raise GateauError(
            f"Dagster's home {home} cannot be made: {error.strerror} ({error.filename}). Move away what is in its "
            "place, or name another folder in DAGSTER_HOME."
        ) from error
    return home


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Two processes that make the same tables of the database in a new home get in each other's way."""
    with (home / ".opening").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def open_instance(config: Config) -> DagsterInstance:
    """The instance in that home.

    Raises:
        GateauError: its dagster.yaml is none, or its records cannot be read.
    """
    home = prepare_home(config)
    os.environ["DAGSTER_HOME"] = str(home)
    try:
        with _one_at_a_time(home):
            instance = DagsterInstance.from_config(str(home))
            instance.get_runs(limit=1)
            instance.all_asset_keys()  # of another file than the runs
    except Exception as error:  # of YAML, of Dagster, of the database, of the file system: each its own types
        reason = " ".join(str(error).split())[:_SHOWN]
        raise GateauError(
            f"Dagster's home {home} cannot be used: {reason or type(error).__name__}. Correct or remove its "
            "dagster.yaml; where it is the records that are damaged, move its folders history and schedules away. Both "
            "are made anew, and what was computed is in the store."
        ) from error
    return instance
