"""Progress of a step in two places: lines in the Dagster run, and the command line's bar."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster import DagsterInstance

from gateau_dagster.config import Config
from gateau_dagster.progress import Progress
from gateau_dagster.progress_board import ProgressBoard

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


@contextmanager
def shown_progress(context: dg.AssetExecutionContext, config: Config) -> Iterator[Progress]:
    """The progress to hand to a method."""
    with board_of(config, context.run_id).step(context.asset_key.to_user_string()) as write:
        said = started = time.monotonic()

        def report(done: float, total: float | None, unit: str, note: str = "") -> None:
            nonlocal said
            write(done, total, unit, note)
            now = time.monotonic()
            if now - said >= _SECONDS_BETWEEN_LINES:
                said = now
                context.log.info(progress_line(done, total, unit, note, now - started))

        yield report


def progress_line(done: float, total: float | None, unit: str, note: str, seconds: float) -> str:
    """`12/63 samples (19 %), 3.1 samples/s, 16 s left`."""
    rate = done / seconds if seconds > 0 else 0.0
    share = f"/{total:,.0f} {unit} ({done / total:.0%})" if total else f" {unit}"
    left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
    return f"{done:,.0f}{share}, {rate:,.1f} {unit}/s{left}{', ' + note if note else ''}"
