"""`gateau status`: the state of each asset, and what is running, on one screen."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from gateau_dagster.assets.runs.history import AssetStatus, Records, asset_statuses, recorded_history, runs_at_work
from gateau_dagster.assets.steps.progress import board_of
from gateau_dagster.cli.display import WholeTable, as_line, console
from gateau_dagster.config import Config
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import indented_lines, plural

_STYLES = {"current": "green", "stale": "yellow", "missing": "dim", "failed": "red"}
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SHOWN = 8  # characters of a run's id


def print_status(config: Config, *, as_json: bool = False) -> None:
    """Print the status; compute nothing, and load no model.

    Raises:
        GateauError: the input, the store or Dagster's records cannot be read.
    """
    out, state = console(), State(config=config)
    with recorded_history(config) as instance:
        if as_json:
            out.print_json(json.dumps(status_record(state, instance)), ensure_ascii=True)
            return
        with out.status("Comparing the store with the configuration"):
            found = asset_statuses(state, instance)
        show_status(out, state, found)
        for line in at_work(config, instance):
            out.print(as_line(line))


def status_record(state: State, instance: Records | None) -> dict[str, Any]:
    """Return the status for programs: `assets` in the order of the data's flow, times in ISO 8601, sizes in bytes."""
    found = asset_statuses(state, instance)
    return {
        "store": state.store.root,
        "up_to_date": all(each.standing == "current" for each in found if each.asked_for),
        "assets": [{**asdict(each), "made": each.made and each.made.isoformat()} for each in found],
        "at_work": [] if instance is None else [run.run_id for run in runs_at_work(instance, state.config)],
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


def at_work(config: Config, instance: Records | None) -> Iterator[str]:
    """Yield a line for each run that has not ended, with its steps."""
    for run in [] if instance is None else runs_at_work(instance, config):
        steps = [entry for entry in board_of(config, run.run_id).entries() if not entry.ended]
        doing = "; ".join(
            f"{entry.step}{f' {entry.done:,.0f}' if entry.unit else ''}"
            f"{f' of {entry.total:,.0f}' if entry.total else ''} {entry.unit}".rstrip()
            for entry in steps
        )
        yield f"At work: run {run.run_id[:_SHOWN]} of {run.job_name}{f': {doing}' if doing else ''}"


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
