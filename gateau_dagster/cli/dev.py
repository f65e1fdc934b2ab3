"""`gateau dev`: the Dagster UI on a configuration."""

import importlib
import os
import sys
from pathlib import Path

from gateau_dagster.cli.display import console
from gateau_dagster.config import Config


def start_ui(config: Config, config_file: str, options: list[str]) -> None:
    """Becomes `dagster dev`, on the Dagster home that `gateau run` uses."""
    os.environ |= {"GATEAU_CONFIG": config_file, "GATEAU_DEMO_FOLDER": str(config.folder)}
    composition = importlib.import_module("gateau_dagster.definitions")
    home = composition.prepare_home(config)
    os.environ["DAGSTER_HOME"] = str(home)
    console().print(f"Dagster UI on [bold]{config_file or 'the embedded demo'}[/bold]; Dagster's home is {home}")
    dagster = str(Path(sys.executable).with_name("dagster"))
    command = [dagster, "dev", "--module-name", "gateau_dagster.definitions", *options]
    os.execv(dagster, command)
