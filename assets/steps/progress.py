"""Progress of a step in two places: lines in the Dagster run, and the command line's bar."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import DagsterInstance

from gateau_dagster.config import Config
from gateau_dagster.progress import ProgressBoard, TimedProgress

_SECONDS_BETWEEN_LINES = 10.0


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
    """The progress to hand to a method."""
    with board_of(config, context.run_id).step(step_title(context)) as write:
        said = started = time.monotonic()

        def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
            nonlocal said
            write(done, total, unit, note, left=left)
            now = time.monotonic()
            if now - said >= _SECONDS_BETWEEN_LINES:
                said = now
                context.log.info(progress_line(done, total, unit, note, now - started, left))

        yield report


def progress_line(
    done: float, total: float | None, unit: str, note: str, seconds: float, left: float | None = None
) -> str:
    """`12/63 samples (19 %), 3.1 samples/s, 16 s left`; with `left` the note is taken to hold the rates."""
    rate = done / seconds if seconds > 0 else 0.0
    share = f"/{total:,.0f} {unit} ({done / total:.0%})" if total else f" {unit}"
    rates = f", {rate:,.1f} {unit}/s" if left is None else ""
    if left is None and total and rate:
        left = (total - done) / rate
    rest = f", {left:,.0f} s left" if left is not None else ""
    return f"{done:,.0f}{share}{rates}{rest}{', ' + note if note else ''}"
