"""Give the forecast of a choice what the trained models of an experiment have shown."""

import polars as pl

from gateau_dagster.assets.experiment import finished_experiment, forecasts_and_outcomes
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.forecast import Slopes


def learned(state: State, depends: pl.DataFrame) -> tuple[list[str], Slopes] | None:
    """Return a sentence per earlier forecast beside its outcome, and the slopes; None without a finished experiment."""
    experiment = finished_experiment(state)
    if experiment is None:
        return None
    outcomes, slopes = forecasts_and_outcomes(state, experiment, depends)
    return [sentence for outcome in outcomes for sentence in outcome.lines], slopes
