"""`gateau dev`: the Dagster UI on a configuration."""

import os
import sys
from pathlib import Path

from rich.markup import escape

from assets.runs.instance import open_instance
from gateau_dagster.cli.display import console
from gateau_dagster.config import Config


def start_ui(config: Config, config_file: str, options: list[str]) -> None:
    """Becomes `dagster dev`, on the Dagster home that `gateau run` uses."""
    os.environ |= {"GATEAU_CONFIG": config_file, "GATEAU_DEMO_FOLDER": str(config.folder)}
    with open_instance(config):  # it says what is wrong with its home, and where that is
        home = os.environ["DAGSTER_HOME"]
    name = escape(config_file) if config_file else "the embedded demo"
    console().print(f"Dagster UI on [bold]{name}[/bold]; Dagster's home is {escape(home)}")
    dagster = str(Path(sys.executable).with_name("dagster"))
    command = [dagster, "dev", "--module-name", "gateau_dagster.definitions", *options]
    os.execv(dagster, command)
