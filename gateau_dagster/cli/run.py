"""`gateau run`: plan, run with a progress bar, say what came out."""

import importlib
import os
import time
from typing import Protocol

import polars as pl
from rich.console import Console
from rich.markup import escape

from gateau_dagster.cli.display import RunDisplay, console
from gateau_dagster.cli.plan import show_plan
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.incremental.plan import Plan
from gateau_dagster.incremental.selection_nodes import PRESETS_TABLE, ranking_asset, wants_presets
from gateau_dagster.incremental.state import REPORT_FILE, State
from gateau_dagster.selection.agreement import auroc


class Outcome(Protocol):
    """What is shown of `assets.refresh.Refreshed`."""

    @property
    def ended_runs(self) -> int: ...

    @property
    def failed_checks(self) -> list[str]: ...


def run_pipeline(config: Config, config_file: str, until: str | None) -> None:
    """Runs what is out of date.

    Raises:
        GateauError: a step failed; the message is its reason.
    """
    out, started = console(), time.monotonic()
    # The composition root reads its configuration when it is imported.
    os.environ |= {"GATEAU_CONFIG": config_file, "GATEAU_DEMO_FOLDER": str(config.folder)}
    composition = importlib.import_module("gateau_dagster.definitions")
    with out.status("Comparing what is stored with what is wanted"):
        state = State(config=config)
        plan = composition.wanted_work(state, until)
    if plan:
        _announce(out, config, state, plan)
    with RunDisplay(out, config.work_folder / "progress").shown():
        result = composition.run_refresh(config, config_file, until=until, plan=plan)
    _conclude(out, state, bool(plan), result, time.monotonic() - started)


def _announce(out: Console, config: Config, state: State, plan: Plan) -> None:
    name = "the embedded demo" if config.demo is not None else f"the configuration in {config.folder}"
    out.print(f"[bold]GATEAU[/bold] on {escape(name)}; the store is {escape(state.store.root)}")
    show_plan(out, state, plan)


def _conclude(out: Console, state: State, worked: bool, result: Outcome, seconds: float) -> None:
    if result.ended_runs:
        out.print(f"Ended {result.ended_runs} earlier run(s) whose process was gone.")
    if not worked:
        out.print(f"[green]Everything is up to date[/green] ({seconds:.1f} s).")
    else:
        out.print(f"[green]Done[/green] in {seconds:.0f} s.")
    for line in result.failed_checks:
        out.print(f"[yellow]![/yellow] {escape(line)}")
    if worked:
        _show_ground_truth(out, state)
    if state.store.files.exists(REPORT_FILE):
        out.print(f"Report: [bold]{escape(state.store.files.address(REPORT_FILE))}[/bold]")
    if worked:
        out.print("Dagster UI on these assets: gateau dev")


def _show_ground_truth(out: Console, state: State) -> None:
    """How well each preset, or the method, found the samples that are known to need far context, where some are."""
    known = state.config.selection.ground_truth
    presets = wants_presets(state.config)
    table = state.node(PRESETS_TABLE if presets else ranking_asset(state.config))
    parts = state.shards if table.partitioned else [None]
    if not known or any(state.stamp(table.asset, part) is None for part in parts):
        return
    columns = {preset: f"score_{preset}" for preset in PRESETS} if presets else {state.config.selection.method: "score"}
    scores = pl.concat([state.store.read(table.asset, part, ["sample_id", *columns.values()]) for part in parts])
    sources = state.store.read_all("raw_long_sft", state.shards, ["sample_id", "source"])
    scores = scores.join(sources, on="sample_id").drop_nulls()
    far = scores["source"].is_in(known).to_list()
    if not any(far) or all(far):
        return
    found = {name: auroc(scores[column].to_list(), far) for name, column in columns.items()}
    text = ", ".join(f"{name} [bold]{value:.3f}[/bold]" for name, value in found.items())
    by = "preset" if presets else "method"
    out.print(f"Samples that need far context ({', '.join(known)}), AUROC by {by}: {text} (0.5 is chance)")
