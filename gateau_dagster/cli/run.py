"""`gateau run`: plan, run with a progress bar, and print the results."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from rich.console import Console

from gateau_dagster.cli.display import (
    RunDisplay,
    as_line,
    configuration_in_words,
    console,
    show_earlier_demo,
    show_losses,
)
from gateau_dagster.cli.plan import show_plan, show_response_share, show_unknown
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.errors import gateau_command
from gateau_dagster.execution import STARTED
from gateau_dagster.execution.interruption import ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.methods.registry import GATEAU
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.pipeline.observed import asks_hub, state_of
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, ranking_asset, wants_presets
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.history import known_history, records_wanted
from gateau_dagster.resources.lease import store_lease
from gateau_dagster.selection.statistics import auroc_by_source
from gateau_dagster.storage import fence

if TYPE_CHECKING:
    from gateau_dagster.assets.runs.refresh import Refreshed


def run_pipeline(config: Config, config_file: str, until: str | None) -> None:
    """Run what is out of date. A signal ends the process in order.

    Raises:
        GateauError: a step failed; the message is its reason.
    """
    with ends_in_order(save_all_rows):
        _run(config, config_file, until)


def _run(config: Config, config_file: str, until: str | None) -> None:
    out = console()

    def say(text: str) -> None:
        if text != fence.loss():  # the last line reports it
            out.print(as_line(text))

    # The lease comes first: a plan from before another run ended would no longer be true.
    with store_lease(config, config_file, exclusive=True, say=say):
        out.print(
            f"[bold]GATEAU[/bold] on {as_line(configuration_in_words())}; the store is {as_line(config.located_root)}"
        )
        show_earlier_demo(out, config)
        with out.status("Comparing the store with the configuration"):
            state = state_of(config=config, asks_hub=asks_hub(config, until))
            plan = checked_plan(state, until)
        for work in plan.work:
            if (needs := state.asset(work.asset).needs) is not None:
                needs()  # before hours of scoring
        if plan:
            show_plan(out, state, plan)
        else:
            show_unknown(out, state)
        result = None if not plan and _is_on_record(state) else _refreshed(out, config, config_file, until, plan)
    _conclude(out, state, until, bool(plan), result)


def _is_on_record(state: State) -> bool:
    """Return whether Dagster has on record what the store holds, and no earlier run has to be ended."""
    known = known_history(state.config)
    return known is not None and known.on_record == records_wanted(state)


def _refreshed(out: Console, config: Config, config_file: str, until: str | None, plan: Plan) -> Refreshed:
    from gateau_dagster.assets.runs.refresh import run_refresh  # imports Dagster, which takes seconds

    with RunDisplay(out, config.work_folder / "progress").shown():
        return run_refresh(config, config_file, until=until, plan=plan)


def _conclude(out: Console, state: State, until: str | None, worked: bool, result: Refreshed | None) -> None:
    """Print the results of the requested assets only, since the rest of the store may be out of date."""
    asked = state.pipeline.required if until is None else state.pipeline.ancestors([until])
    for note in [] if result is None else result.notes:
        out.print(as_line(note))
    seconds, lost = time.monotonic() - STARTED, [*losses(state, asked)]
    if not worked:
        out.print(f"[green]Everything is up to date[/green] ({seconds:.1f} s).")
    else:
        out.print(f"[green]Done[/green] in {seconds:.0f} s.")
    for line in [] if result is None else result.failed_checks:
        if not any(loss.sentence in line for loss in lost):  # it is printed below
            out.print(f"[yellow]![/yellow] {as_line(line)}")
    show_losses(out, (loss for loss in lost if not loss.intended))
    if worked:
        _show_ground_truth(out, state, asked)
    if worked and CHOSEN in asked:
        export = gateau_command(
            f"export {'prompt' if state.config.trained_turns == 'last' else 'messages'} --out selected.parquet"
        )
        show_response_share(out, state)
        out.print(f"Chosen samples: {as_line(state.store.address(CHOSEN))}; for a trainer: {as_line(export)}")
    for asset in sorted(each for each in asked if state.asset(each).elsewhere is not None):
        out.print(f"Data set: [bold]{as_line(state.read(asset, ['url'])['url'][0])}[/bold]")
    for asset in (each for each in state.pipeline.assets if each.key in asked and each.file.endswith(".html")):
        out.print(f"{asset.key.capitalize()}: [bold]{as_line(state.store.files.address(asset.file))}[/bold]")
        for name, shows in asset.further_files.items():
            out.print(f"{shows}: {as_line(state.store.files.address(name))}")
    if worked:
        out.print(f"Dagster UI on these assets: {as_line(gateau_command('dev'))}")


def _show_ground_truth(out: Console, state: State, asked: Container[str]) -> None:
    """Print how well each preset and the deciding method found the samples known to need far context."""
    selection, texts = state.config.selection, []
    if wants_presets(state.config) and PRESETS_TABLE in asked:
        presets = _aurocs(state, PRESETS_TABLE, {preset: f"score_{preset}" for preset in PRESETS})
        texts.append(("preset", presets, selection.preset if selection.method == GATEAU else None))
    ranking = ranking_asset(state.config)
    if selection.method != GATEAU and ranking in asked:
        texts.append(("method", _aurocs(state, ranking, {selection.method: "score"}), selection.method))
    shown = [f"by {kind}: {_listed(found, selects)}" for kind, found, selects in texts if found]
    if shown:
        known = as_line(", ".join(selection.ground_truth))
        out.print(f"Samples that need far context ({known}), AUROC {'; '.join(shown)}. 0.5 is chance.")


def _listed(found: Mapping[str, float], selects: str | None) -> str:
    return ", ".join(
        f"{name} [bold]{value:.3f}[/bold]{' (selects)' if name == selects else ''}" for name, value in found.items()
    )


def _aurocs(state: State, asset: str, columns: Mapping[str, str]) -> dict[str, float]:
    """Return the AUROC of score columns by name; empty without the table, or if no ground truth separates samples."""
    known, parts = state.config.selection.ground_truth, state.pipeline.partitions(asset)
    if not known or any(state.stamp(asset, part) is None for part in parts):
        return {}
    scores = state.read(asset, ["sample_id", *columns.values()])
    sources = state.store.read_all("raw_long_sft", state.shards, ["sample_id", "source"])
    found = {name: auroc_by_source(sources, scores, column, known) for name, column in columns.items()}
    return {name: value for name, value in found.items() if value is not None}
