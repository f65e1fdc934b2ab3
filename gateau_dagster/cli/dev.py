"""`gateau dev`: the Dagster UI on a configuration."""

import os
from importlib.resources import files

from rich.markup import escape

from assets.runs.dagster_command import command_for
from assets.runs.instance import open_instance
from gateau_dagster.cli.display import console
from gateau_dagster.config import Config

# Of one look of the schedule or the sensor: the first one reads a whole input, or the weights of a model.
_LOOK_SECONDS = "300"


def start_ui(config: Config, config_file: str, options: list[str]) -> None:
    """Becomes `dagster dev`, on the Dagster home that `gateau run` uses.

    By a workspace file, which gives the code location its one name; by the module alone it would have another.
    """
    os.environ |= {"GATEAU_CONFIG": config_file, "GATEAU_DEMO_FOLDER": str(config.folder)}
    with open_instance(config) as instance:  # it says what is wrong with its home, and where that is
        home, dagster = os.environ["DAGSTER_HOME"], command_for(instance)
    name = escape(config_file) if config_file else "the embedded demo"
    console().print(f"Dagster UI on [bold]{name}[/bold]; Dagster's home is {escape(home)}")
    for kind in ("SENSOR", "SCHEDULE"):
        os.environ.setdefault(f"DAGSTER_{kind}_GRPC_TIMEOUT_SECONDS", _LOOK_SECONDS)
    workspace = str(files("gateau_dagster").joinpath("workspace.yaml"))
    os.execv(dagster[0], [*dagster, "dev", "--workspace", workspace, *options])
