"""`gateau publish`."""

import os
from pathlib import Path

import click

from gateau_dagster.cli.commands import FeatureCommand, config_option, loaded
from gateau_dagster.cli.display import as_line, console
from gateau_dagster.errors import ENVIRONMENT_VARIABLE, GateauError
from gateau_dagster.features.publish.config import SECTION


@click.command()
@click.argument("name", default="main")
@click.option("--anyway", is_flag=True, help="Upload even if a check fails as an error; the card names it.")
@click.option(
    "--to",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the data set and its card into FOLDER instead. No token is needed, and nothing is uploaded.",
)
@config_option
def publish(name: str, anyway: bool, folder: Path | None, config_file: str | None) -> None:
    """Update a data set on the Hugging Face hub that the section `publish` names.

    NAME is a variant in `publish.variants`; without it, the single run's selection is published.

    It holds the chosen samples, their scores and a data card. The command first runs what these need. It uploads
    nothing if a check fails as an error; the card names the failed ones. The token comes from HF_TOKEN. One commit
    makes a new revision visible. Files that the hub already holds are not uploaded again. With --to, the same files are
    written into a folder, to be read first.
    """
    from gateau_dagster.cli.run import run_pipeline
    from gateau_dagster.features.publish.feature import ANYWAY, FAMILY
    from gateau_dagster.pipeline.observed import state_of
    from gateau_dagster.pipeline.plan import ancestors

    config = loaded(config_file)
    if SECTION.of(config) is None:
        raise GateauError(
            "publish.not_configured",
            "no data set is configured: add `publish: {repository: owner/name, license: …}` to the configuration.",
        )
    if anyway:
        os.environ[ANYWAY] = "1"
    file, asset = os.environ[ENVIRONMENT_VARIABLE], f"{FAMILY}/{name}"
    if folder is None:
        run_pipeline(config, file, asset)
        return
    from gateau_dagster.features.publish.assets import write_into

    state = state_of(config=config)
    ancestors(asset, state.pipeline.assets)  # it raises for an unknown variant
    for needed in state.asset(asset).reads:
        if state_of(config=config).plan_until(needed):
            run_pipeline(config, file, needed)
    write_into(state_of(config=config), asset, folder.absolute())
    out = console()
    out.print(f"Wrote the data set to {as_line(str(folder))}; its card is {as_line(str(folder / 'README.md'))}.")


COMMANDS = (
    FeatureCommand(command=publish, after="export", summary="the chosen samples as a data set on the Hugging Face hub"),
)
