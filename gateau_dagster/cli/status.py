"""`gateau status`: the state of each asset, and what is running. `gateau clean`: what nothing needs, to remove it."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from gateau_dagster.cli.display import WholeTable, as_line, console, left_table
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.leftovers import Leftover, leftovers
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import ProgressBoard
from gateau_dagster.readable import indented_lines, plural
from gateau_dagster.resources.history import AssetStatus, History, asset_statuses, known_history
from gateau_dagster.resources.lease import holder_of, whole_store_lease

_STYLES = {"current": "green", "stale": "yellow", "missing": "dim", "failed": "red"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SHOWN = 8  # characters of a run's id


def print_status(config: Config, *, as_json: bool = False) -> None:
    """Print the status; compute nothing, and load no model.

    Raises:
        GateauError: the input, the store or Dagster's records cannot be read.
    """
    out, state = console(), state_of(config=config)
    history = history_of(state)
    if as_json:
        out.print_json(json.dumps(status_record(state, history)), ensure_ascii=True)
        return
    with out.status("Comparing the store with the configuration"):
        found = asset_statuses(state, history)
    show_status(out, state, found)
    for line in at_work(config, history):
        out.print(as_line(line))


def history_of(state: State) -> History:
    """Return Dagster's records, without Dagster if they are known.

    Raises:
        GateauError: the records cannot be read.
    """
    if (known := known_history(state.config)) is not None:
        return known
    from gateau_dagster.assets.runs.history import read_history

    return read_history(state.config, state.pipeline.assets)


def status_record(state: State, history: History) -> dict[str, Any]:
    """Return the status for programs: `assets` in the order of the data's flow, times in ISO 8601, sizes in bytes."""
    found = asset_statuses(state, history)
    return {
        "store": state.store.root,
        "up_to_date": all(each.standing == "current" for each in found if each.asked_for),
        "assets": [{**asdict(each), "made": each.made and each.made.isoformat()} for each in found],
        "at_work": [run.run for run in history.at_work],
    }


def show_status(out: Console, state: State, found: list[AssetStatus]) -> None:
    """Print one row per asset, and a line for each asset that needs attention."""
    counts: Mapping[str, int] = {
        name: sum(each.standing == name for each in found if each.asked_for) for name in _STYLES
    }
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    out.print(f"[bold]{said}[/bold]; the store is {as_line(state.store.root)}", soft_wrap=True)
    table = WholeTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("asset", "state", "parts", "rows", "rejected", "size", "made", "run"):
        table.add_column(name, justify="right" if name in {"rows", "rejected", "size"} else "left", no_wrap=True)
    for each in found:
        style = _STYLES[each.standing] if each.asked_for else "dim"
        standing = each.standing if each.asked_for or each.standing == "current" else "not asked for"
        table.add_row(each.asset, Text(standing, style=style), *map(Text, _cells(each)))
    out.print(table)
    for each in found:
        if each.asked_for and each.standing in {"stale", "failed"}:
            mark = "red" if each.standing == "failed" else "yellow"
            out.print(Text.assemble(("! ", mark), f"{each.asset}: {indented_lines(each.why)}"), soft_wrap=True)


def _cells(found: AssetStatus) -> list[str]:
    behind = found.stale + found.missing
    parts = f"{found.parts}" if found.parts else ""
    return [
        f"{behind} of {parts}" if found.parts and behind else parts,
        "" if found.rows is None else f"{found.rows:,}",
        f"{found.rejected:,}" if found.rejected else "",
        size(found.size) if found.size else "",
        "" if found.made is None else ago((datetime.now(UTC) - found.made).total_seconds()),
        found.run[:_SHOWN],
    ]


def at_work(config: Config, history: History) -> Iterator[str]:
    """Yield a line for each run that has not ended, with its steps."""
    for run in history.at_work:
        board = ProgressBoard(config.work_folder / "progress" / run.run)
        steps = [entry for entry in board.entries() if not entry.ended]
        doing = "; ".join(
            f"{entry.step}{f' {entry.done:,.0f}' if entry.unit else ''}"
            f"{f' of {entry.total:,.0f}' if entry.total else ''} {entry.unit}".rstrip()
            for entry in steps
        )
        yield f"At work: run {run.run[:_SHOWN]} of {run.job}{f': {doing}' if doing else ''}"


def size(count: float) -> str:
    """Return a size as `3 B` or `1.2 MB`."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[unit]}"


def ago(seconds: float) -> str:
    """Return a time as `just now`, `12 minutes ago` or `3 days ago`."""
    for length, noun in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= length:
            return f"{plural(int(seconds // length), noun)} ago"
    return "just now"


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
    state = state_of(config=config)
    _check_idle(state)
    with out.status("Looking for what nothing needs"):
        found = leftovers(state)
    if not as_json:
        _show(found)
    asked = bool(found) and not yes and not as_json and sys.stdin.isatty()
    agreed = bool(found) and (yes or (asked and click.confirm("Remove these?")))
    freed = _removed(config, found) if agreed else 0
    if as_json:
        items = [{"what": each.kind, "where": each.address, "bytes": each.size} for each in found]
        record = {"leftovers": items, "bytes": _bytes(found), "removed_bytes": freed}
        out.print_json(json.dumps(record), ensure_ascii=True)
    elif agreed:
        out.print(f"Removed {size(freed)}.")
    elif found:
        out.print("Nothing was removed." if asked else "Nothing was removed: add --yes to remove these.")


def _check_idle(state: State) -> None:
    """Check that no run is at work, here or on another machine.

    Raises:
        GateauError: a run is at work.
    """
    advice = "Wait until it ends, or end it: the list would contain what it uses."
    if holder := holder_of(state.config):
        raise GateauError("storage.lease_held", f"{state.config.located_root} is in use by {holder}. {advice}")
    for run in history_of(state).at_work:
        if not run.gone:
            raise GateauError("storage.lease_held", f"run {run.run} of {run.job} is at work. {advice}")


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
        now = {(each.address, each.upload): each for each in leftovers(state_of(config=config))}
        for each in shown:
            if (each.address, each.upload) in now:
                each.remove()
        # Taking the lease has removed some, and what is gone from the list without that is in use again.
        return sum(
            each.size
            for each in shown
            if (each.address, each.upload) in now or each.upload or not each.files.exists(each.name)
        )


def _bytes(found: list[Leftover]) -> int:
    return sum(each.size for each in found)
