"""`gateau demo`."""

import os

import click

from gateau_dagster.cli.commands import UNTIL_HELP, FeatureCommand, loaded
from gateau_dagster.errors import DEMO, ENVIRONMENT_VARIABLE


@click.command()
@click.option("--until", metavar="ASSET", help=UNTIL_HELP)
def demo(until: str | None) -> None:
    """Run the whole pipeline on a model pair and data that it builds itself, in the folder gateau_demo.

    The other commands look at it with `--config demo`, for example `gateau open --config demo`. Remove the folder when
    you are done.
    """
    from gateau_dagster.cli.run import run_pipeline

    config = loaded(DEMO)
    run_pipeline(config, os.environ[ENVIRONMENT_VARIABLE], until)


_SUMMARY = "the same on built-in data, in the folder gateau_demo"
COMMANDS = (FeatureCommand(command=demo, after="forecast", summary=_SUMMARY),)
