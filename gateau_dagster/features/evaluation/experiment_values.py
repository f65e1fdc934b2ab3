"""Read an experiment from the store: its values, and the forecasts of its selections beside their outcome."""

import polars as pl

from gateau_dagster.features.evaluation import EXPERIMENT, JUDGMENTS, SCORES
from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.judged import RatedBenchmark, turn_scores
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from gateau_dagster.features.evaluation.statistics.experiment import configured_gate, lines_of, reference_of
from gateau_dagster.features.evaluation.statistics.forecast_outcomes import (
    ForecastOutcome,
    forecast_outcomes,
    slopes_of,
)
from gateau_dagster.features.evaluation.statistics.results import RANDOM, ExperimentInputs
from gateau_dagster.pipeline.choice import Candidates, chosen_samples, forecast_of
from gateau_dagster.pipeline.recipes import SUBSETS, recipe_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.evidence import FAR
from gateau_dagster.selection.forecast import PRIOR, Slopes


def experiment_inputs(state: State, table: pl.DataFrame) -> ExperimentInputs:
    """Return the inputs of the figures and the page; `table`: tables.EXPERIMENT."""
    judge = evaluation_of(state.config).judge
    return ExperimentInputs(
        table=table,
        lines=lines_of(state.config),
        scores={name: by_variant(state, f"{SCORES}/{name}") for name in table["benchmark"].unique(maintain_order=True)},
        benchmarks=scored_benchmarks(state.config),
        reference=reference_of(state.config),
        turns={name: scores_by_turn(state, each) for name, each in scored_benchmarks(state.config).items()},
        gate=configured_gate(state.config, table),
        rejected={name: state.read_rejected(f"{SCORES}/{name}") for name in scored_benchmarks(state.config)},
        currency="" if judge is None else judge.currency,
    )


def by_variant(state: State, asset: str) -> dict[str, pl.DataFrame]:
    """Return the tables of an asset for all variants."""
    return {name: state.store.read(asset, name) for name in state.config.variant_set}


def scores_by_turn(state: State, chosen: Benchmark) -> dict[int, dict[str, pl.DataFrame]]:
    """Return the scores by variant for every turn that was judged; empty if questions have one turn each."""
    if not isinstance(chosen, RatedBenchmark) or not chosen.several_turns:
        return {}
    judged, scores = (by_variant(state, f"{family}/{chosen.name}") for family in (JUDGMENTS, SCORES))
    found = {name: turn_scores(each, judged[name], scale=chosen.scale) for name, each in scores.items()}
    known = sorted({turn for turns in found.values() for turn in turns})
    # If no judgment of a turn is readable for a model, its scores of that turn are empty.
    return {turn: {name: turns.get(turn, scores[name].clear()) for name, turns in found.items()} for turn in known}


def finished_experiment(state: State) -> ExperimentInputs | None:
    """Return the inputs of the experiment if its table and all values are in the store; else None."""
    if EXPERIMENT not in state.pipeline.by_key:
        return None
    names = scored_benchmarks(state.config)
    scores = [(f"{SCORES}/{name}", variant) for name in names for variant in state.config.variant_set]
    subsets = [(SUBSETS, name) for name in state.config.variant_set] if SUBSETS in state.pipeline.by_key else []
    if None in state.table_stamps([(EXPERIMENT, None), *scores, *subsets]).values():
        return None
    return experiment_inputs(state, state.read(EXPERIMENT))


def forecasts_and_outcomes(
    state: State, inputs: ExperimentInputs | None, depends: pl.DataFrame
) -> tuple[list[ForecastOutcome], Slopes]:
    """Return the forecasts of an experiment's selections beside their outcomes, and the slopes that its models show.

    These forecasts rest on the prior, as before the experiment. The slopes are for the next choice. Without an
    experiment (`inputs` None) there are none, and the slopes are the prior. `depends`: from pipeline.choice.dependence.
    """
    if inputs is None:
        return [], PRIOR
    of_samples = depends.select("sample_id", far=pl.col("dependency").is_in(FAR))
    selecting = [line for line in inputs.lines if line.series]
    candidates, told = Candidates(state), {}
    for line in selecting:
        if line.series != RANDOM:  # the others are compared with it
            recipe = recipe_of(state.config, line.variants[0])
            told[line.name] = forecast_of(state, recipe, depends, chosen_samples(state, recipe, depends, candidates))
    counts = {}
    for name in (variant for line in selecting for variant in line.variants):
        far = state.store.read(SUBSETS, name, ["sample_id"]).join(of_samples, on="sample_id")["far"]
        counts[name] = (int(far.sum()), int((~far).sum()))
    kinds = dict(of_samples.iter_rows())
    return forecast_outcomes(inputs, told, kinds), slopes_of(inputs, counts, kinds)
