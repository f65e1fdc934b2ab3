"""`gateau dev`: the Dagster UI on a configuration."""

import os
import sys
from importlib.resources import files
from pathlib import Path

from gateau_dagster.assets.runs.instance import open_instance
from gateau_dagster.cli.display import as_line, configuration_in_words, console
from gateau_dagster.config import Config

# Time for one evaluation of the schedule or the sensor: the first one reads the whole input, or a model's weights.
_LOOK_SECONDS = "300"


def start_ui(config: Config, options: list[str]) -> None:
    """Replace this process by `dagster dev`, on the Dagster home that `gateau run` uses.

    GATEAU_CONFIG names the configuration. A workspace file gives the code location a fixed name, which would otherwise
    depend on the module.
    """
    with open_instance(config):  # it reports errors of its home, with the place
        home, dagster = os.environ["DAGSTER_HOME"], str(Path(sys.executable).with_name("dagster"))
    out = console()
    out.print(f"Dagster UI on [bold]{as_line(configuration_in_words())}[/bold]; Dagster's home is {as_line(home)}")
    out.print("A line below shows its address in about half a minute: Serving dagster-webserver on http://…")
    out.file.flush()  # because the process is replaced below
    for kind in ("SENSOR", "SCHEDULE"):
        os.environ.setdefault(f"DAGSTER_{kind}_GRPC_TIMEOUT_SECONDS", _LOOK_SECONDS)
    workspace = str(files("gateau_dagster").joinpath("workspace.yaml"))
    os.execv(dagster, [dagster, "dev", "--workspace", workspace, *options])
