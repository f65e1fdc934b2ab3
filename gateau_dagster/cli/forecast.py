"""`gateau forecast`: whether training on the configured choice is likely to beat training on random samples."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateau_dagster.cli.display import as_line, console, say_if_out_of_date
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.checks import out_of_date
from gateau_dagster.pipeline.choice import (
    chosen_samples,
    dependence,
    forecast_of,
    lacking_for_forecast,
    warnings_of_choice,
)
from gateau_dagster.pipeline.feature import hooks, prepare_inputs
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import ancestors
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.selection_reads import has_evidence, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, perplexity_asset
from gateau_dagster.selection.forecast import PRIOR, Forecast, SelectionVerdict
from gateau_dagster.selection.wording import forecast_lines, forecast_record, short_lines

_STYLES: dict[SelectionVerdict, str] = {"pays": "green", "level": "yellow", "do_not_select": "red"}


def print_forecast(config: Config, *, as_json: bool = False) -> None:
    """Print the forecast for the configured choice, and earlier ones beside their outcome; load and train no model.

    The choice is made from the scores in the store, whether `selected_subset` exists or not.

    Raises:
        GateauError: a table is missing, with what to run, or the data cannot satisfy the rule.
    """
    out, state = console(), state_of(config=config)
    prepare_inputs(config)
    if as_json:
        prediction, outcomes, warnings = _forecast(state)
        stale = any(out_of_date(state, asset) for asset in _rests_on(state))
        record = forecast_record(prediction) | {
            "warnings": warnings,
            "outcomes": outcomes,
            "out_of_date": stale,
        }
        out.print_json(json.dumps(record), ensure_ascii=True)
        return
    with out.status("Reading the tables"):
        prediction, outcomes, warnings = _forecast(state)
    say_if_out_of_date(out, state, _rests_on(state), require_current=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, sentence in forecast_lines(prediction):
        table.add_row(label, Text(sentence, style=_STYLES[prediction.verdict] if label == "Verdict" else ""))
    out.print(table)
    _show_warnings(out, warnings)
    for sentence in outcomes:
        out.print(as_line(sentence), soft_wrap=False)


def _rests_on(state: State) -> list[str]:
    # If one of them is upstream of the ranking, its staleness shows there already.
    ranking = ranking_asset(state.config)
    included = ancestors(ranking, state.pipeline.assets)
    return [ranking, *(each for each in (CAM, perplexity_asset(THETA_B)) if each not in {ranking, *included})]


def _forecast(state: State) -> tuple[Forecast, list[str], list[str]]:
    """Return the forecast, earlier ones beside their outcome in sentences, and the warnings of the choice."""
    recipe, depends = Recipe(state.config), dependence(state)
    known = (learned(state, depends) for learned in hooks("checks", "learned"))
    outcomes, slopes = next((each for each in known if each is not None), ([], PRIOR))
    made = chosen_samples(state, recipe, depends)
    prediction = forecast_of(state, recipe, depends, made, slopes=slopes)
    return prediction, outcomes, warnings_of_choice(recipe, prediction, depends, made.chosen)


def _show_warnings(out: Console, warnings: list[str]) -> None:
    for warning in warnings:
        out.print(f"[yellow]![/yellow] {as_line(warning)}", soft_wrap=False)


def show_short_forecast(out: Console, state: State) -> None:
    """Print the forecast in two lines and the warnings of the choice, if `evidence` is made and its tables exist."""
    try:
        current = _current_forecast(state)
    except GateauError as error:  # a plan shows all else
        out.print()
        out.print(as_line(f"Forecast: {error}"), soft_wrap=False)
        return
    if current is not None:
        prediction, warnings = current
        out.print()
        for sentence in short_lines(prediction):
            out.print(as_line(sentence), soft_wrap=False)
        _show_warnings(out, warnings)


def plan_forecast_record(state: State) -> dict[str, Any] | None:
    """Return the forecast and `warnings` for programs, or `error`; None where `show_short_forecast` prints nothing."""
    try:
        current = _current_forecast(state)
    except GateauError as error:
        return {"error": str(error)}
    return None if current is None else forecast_record(current[0]) | {"warnings": current[1]}


def _current_forecast(state: State) -> tuple[Forecast, list[str]] | None:
    config = state.config
    if not has_evidence(config) or lacking_for_forecast(state) is not None:
        return None
    prediction, _, warnings = _forecast(state)
    return prediction, warnings
