"""Dagster's own command line, `python -m assets.runs.dagster_command dev …`, on the instance of `gateau run`.

For a dagster.yaml whose storage is dagster-postgres's: `dagster dev` hands its instance on to webserver and daemon.
"""

import os
import sys
from pathlib import Path

from dagster import DagsterInstance
from dagster._cli import main as dagster
from dagster._core.instance.ref import InstanceRef

from assets.runs.postgres_home import mended


def command_for(instance: DagsterInstance) -> list[str]:
    """How Dagster's command line is started on an instance that `open_instance` gave."""
    if InstanceRef.from_dir(os.environ["DAGSTER_HOME"]) == instance.get_ref():
        return [str(Path(sys.executable).with_name("dagster"))]
    return [sys.executable, "-m", "assets.runs.dagster_command"]


def _instance() -> DagsterInstance:
    return DagsterInstance.from_ref(mended(InstanceRef.from_dir(os.environ["DAGSTER_HOME"])))


if __name__ == "__main__":
    DagsterInstance.get = staticmethod(_instance)
    dagster()
