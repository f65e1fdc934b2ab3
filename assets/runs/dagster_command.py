"""Run Dagster's command line, `python -m assets.runs.dagster_command dev …`, on the instance of `gateau run`.

It serves a dagster.yaml with dagster-postgres's storage, since `dagster dev` passes its instance to webserver and
daemon.
"""

import os
import sys
from pathlib import Path

from dagster import DagsterInstance
from dagster._cli import main as dagster
from dagster._core.instance.ref import InstanceRef

from assets.runs.postgres_home import mended


def command_for(instance: DagsterInstance) -> list[str]:
    """Return the command that starts Dagster's command line on an instance from `open_instance`."""
    if InstanceRef.from_dir(os.environ["DAGSTER_HOME"]) == instance.get_ref():
        return [str(Path(sys.executable).with_name("dagster"))]
    return [sys.executable, "-m", "assets.runs.dagster_command"]


def _instance() -> DagsterInstance:
    return DagsterInstance.from_ref(mended(InstanceRef.from_dir(os.environ["DAGSTER_HOME"])))


if __name__ == "__main__":
    DagsterInstance.get = staticmethod(_instance)
    dagster()
