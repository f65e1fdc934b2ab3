"""Progress of a step in two places: lines in the Dagster run, and the command line's bar."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import DagsterInstance

from assets.steps.voice import Voice
from gateau_dagster.config import Config
from gateau_dagster.progress import ProgressBoard, TimedProgress


def board_of(config: Config, run_id: str) -> ProgressBoard:
    """Where the steps of a run show their progress."""
    return ProgressBoard(config.work_folder / "progress" / run_id)


def remove_old_boards(config: Config, instance: DagsterInstance) -> None:
    """Takes down the boards of runs that have ended; others, started in the UI, may be at work."""
    for folder in (config.work_folder / "progress").glob("*"):
        run = instance.get_run_by_id(folder.name)
        if run is None or run.is_finished:
            shutil.rmtree(folder, ignore_errors=True)


def step_title(context: dg.AssetExecutionContext) -> str:
    """The assets that a step makes, as people name them: `perplexity/long + cam`."""
    return " + ".join(selected_assets(context))


def selected_assets(context: dg.AssetExecutionContext) -> list[str]:
    """The assets that the step is asked for, in the order in which they are defined."""
    defined = context.assets_def.node_keys_by_output_name.values()
    return [key.to_user_string() for key in defined if key in context.selected_asset_keys]


@contextmanager
def shown_progress(context: dg.AssetExecutionContext, config: Config) -> Iterator[TimedProgress]:
    """The progress to hand to a method; the run's log gets a line at least every 15 seconds, whatever is reported."""
    voice = Voice(context.log.info)
    with board_of(config, context.run_id).step(step_title(context)) as write, voice.speaking():

        def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
            write(done, total, unit, note, left=left)
            voice.hear(done, total, unit, note, left)

        yield report
