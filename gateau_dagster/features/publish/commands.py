"""`gateau publish`."""

import os

import click

from gateau_dagster.cli.commands import FeatureCommand, config_option, loaded
from gateau_dagster.errors import ENVIRONMENT_VARIABLE, GateauError
from gateau_dagster.features.publish.config import SECTION


@click.command()
@click.argument("name", default="main")
@click.option("--anyway", is_flag=True, help="Upload even if a check fails as an error; the card names it.")
@config_option
def publish(name: str, anyway: bool, config_file: str | None) -> None:
    """Update a data set on the Hugging Face hub that the section `publish` names.

    NAME is a variant in `publish.variants`; without it, the single run's selection is published.

    It holds the chosen samples, their scores and a data card. The command first runs what these need. It uploads
    nothing if a check fails as an error; the card names the failed ones. The token comes
    from HF_TOKEN. One commit makes a new revision visible. Files that the hub already holds are not uploaded again.
    """
    from gateau_dagster.cli.run import run_pipeline
    from gateau_dagster.features.publish.feature import ANYWAY, FAMILY

    config = loaded(config_file)
    if SECTION.of(config) is None:
        raise GateauError(
            "publish.not_configured",
            "no data set is configured: add `publish: {repository: owner/name, license: …}` to the configuration.",
        )
    if anyway:
        os.environ[ANYWAY] = "1"
    run_pipeline(config, os.environ[ENVIRONMENT_VARIABLE], f"{FAMILY}/{name}")


COMMANDS = (
    FeatureCommand(command=publish, after="export", summary="the chosen samples as a data set on the Hugging Face hub"),
)
