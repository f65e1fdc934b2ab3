"""`gateau clean`: list what nothing needs, with sizes, and remove it after asking."""

import json
import sys

import click

from gateau_dagster.assets.runs.history import recorded_history, runs_at_work
from gateau_dagster.assets.steps.dead_runs import process_of, process_state
from gateau_dagster.cli.display import as_line, console, left_table
from gateau_dagster.cli.status import size
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.leftovers import Leftover, leftovers
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural
from gateau_dagster.resources.lease import holder_of, whole_store_lease


def clean_up(config: Config, *, yes: bool, as_json: bool) -> None:
    """Print what nothing needs, and remove it if the user agrees.

    Args:
        config: the configuration.
        yes: whether to remove it without asking.
        as_json: whether to print one JSON object; nothing is removed without `yes`.

    Raises:
        GateauError: a run is at work, or the store or the input cannot be read.
    """
    out = console()
    _check_idle(config)
    with out.status("Looking for what nothing needs"):
        found = leftovers(State(config=config))
    if not as_json:
        _show(found)
    asked = bool(found) and not yes and not as_json and sys.stdin.isatty()
    agreed = bool(found) and (yes or (asked and click.confirm("Remove these?")))
    freed = _removed(config, found) if agreed else 0
    if as_json:
        record = {"leftovers": [_record(each) for each in found], "bytes": _bytes(found), "removed_bytes": freed}
        out.print_json(json.dumps(record), ensure_ascii=True)
    elif agreed:
        out.print(f"Removed {size(freed)}.")
    elif found:
        out.print("Nothing was removed." if asked else "Nothing was removed: add --yes to remove these.")


def _check_idle(config: Config) -> None:
    """Check that no run is at work, here or on another machine.

    Raises:
        GateauError: one is.
    """
    advice = "Wait until it ends, or end it: the list would contain what it uses."
    if holder := holder_of(config):
        raise GateauError("storage.lease_held", f"{config.located_root} is in use by {holder}. {advice}")
    with recorded_history(config) as instance:
        if instance is None:
            return
        for run in runs_at_work(instance, config):
            tag = process_of(instance, run)
            if tag is None or process_state(tag) != "gone":
                raise GateauError("storage.lease_held", f"run {run.run_id} of {run.job_name} is at work. {advice}")


def _show(found: list[Leftover]) -> None:
    out = console()
    if not found:
        out.print("There is nothing to clean.")
        return
    table = left_table("what", "where", right=("size",))
    table.columns[1].max_width = None
    for each in found:
        table.add_row(as_line(each.kind), as_line(each.address), size(each.size))
    out.print(table)
    out.print(f"{plural(len(found), 'item')}, {size(_bytes(found))}")


def _removed(config: Config, shown: list[Leftover]) -> int:
    """Remove what was shown and is still of no use, and return its bytes. No run can begin to use it meanwhile."""
    with whole_store_lease(config, "gateau clean", lambda text: click.echo(as_line(text), err=True)):
        now = {(each.address, each.upload): each for each in leftovers(State(config=config))}
        for each in shown:
            if (each.address, each.upload) in now:
                each.remove()
        # Taking the lease has removed some, and what is gone from the list without that is in use again.
        return sum(each.size for each in shown if (each.address, each.upload) in now or not _exists(each))


def _exists(leftover: Leftover) -> bool:
    return not leftover.upload and leftover.files.exists(leftover.name)


def _bytes(found: list[Leftover]) -> int:
    return sum(each.size for each in found)


def _record(leftover: Leftover) -> dict[str, object]:
    return {"what": leftover.kind, "where": leftover.address, "bytes": leftover.size}
