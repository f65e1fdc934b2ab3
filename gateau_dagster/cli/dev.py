"""`gateau dev`: the Dagster UI on a configuration."""

import os

from rich.markup import escape

from assets.runs.dagster_command import command_for
from assets.runs.instance import open_instance
from gateau_dagster.cli.display import console
from gateau_dagster.config import Config


def start_ui(config: Config, config_file: str, options: list[str]) -> None:
    """Becomes `dagster dev`, on the Dagster home that `gateau run` uses."""
    os.environ |= {"GATEAU_CONFIG": config_file, "GATEAU_DEMO_FOLDER": str(config.folder)}
    with open_instance(config) as instance:  # it says what is wrong with its home, and where that is
        home, dagster = os.environ["DAGSTER_HOME"], command_for(instance)
    name = escape(config_file) if config_file else "the embedded demo"
    console().print(f"Dagster UI on [bold]{name}[/bold]; Dagster's home is {escape(home)}")
    os.execv(dagster[0], [*dagster, "dev", "--module-name", "gateau_dagster.definitions", *options])
