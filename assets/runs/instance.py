"""Dagster's own home: where runs and events are recorded, shared by `gateau run` and the UI."""

import os
from pathlib import Path

from dagster import DagsterInstance

from gateau_dagster.config import Config

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
    """DAGSTER_HOME, or a folder beside the configuration; with a dagster.yaml if there is none."""
    home = Path(os.environ.get("DAGSTER_HOME") or config.work_folder / "dagster").absolute()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    return home


def open_instance(config: Config) -> DagsterInstance:
    """The instance in that home."""
    home = prepare_home(config)
    os.environ["DAGSTER_HOME"] = str(home)
    return DagsterInstance.from_config(str(home))
