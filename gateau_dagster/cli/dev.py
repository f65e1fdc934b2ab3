"""`gateau dev`: the Dagster UI on a configuration."""

import os
from importlib.resources import files

from assets.runs.dagster_command import command_for
from assets.runs.instance import open_instance
from gateau_dagster.cli.display import as_line, configuration_in_words, console
from gateau_dagster.config import Config

# Of one look of the schedule or the sensor: the first one reads a whole input, or the weights of a model.
_LOOK_SECONDS = "300"


def start_ui(config: Config, options: list[str]) -> None:
    """Become `dagster dev`, on the Dagster home that `gateau run` uses. GATEAU_CONFIG names the configuration.

    A workspace file gives the code location its one name; by the module alone it would have another.
    """
    with open_instance(config) as instance:  # it says what is wrong with its home, and where that is
        home, dagster = os.environ["DAGSTER_HOME"], command_for(instance)
    out = console()
    out.print(f"Dagster UI on [bold]{as_line(configuration_in_words())}[/bold]; Dagster's home is {as_line(home)}")
    out.print("In half a minute a line below tells its address: Serving dagster-webserver on http://…")
    out.file.flush()  # this process becomes another one
    for kind in ("SENSOR", "SCHEDULE"):
        os.environ.setdefault(f"DAGSTER_{kind}_GRPC_TIMEOUT_SECONDS", _LOOK_SECONDS)
    workspace = str(files("gateau_dagster").joinpath("workspace.yaml"))
    os.execv(dagster[0], [*dagster, "dev", "--workspace", workspace, *options])
