"""The asset that an experiment comes to: what the models are compared by."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.evaluation.registry import ChosenBenchmark, scored_benchmarks
from gateau_dagster.evaluation.statistics.experiment import CODE_VERSION
from gateau_dagster.evaluation.statistics.lines import reference_of
from gateau_dagster.pipeline.asset import FINITE_VALUES, GATE, Asset
from gateau_dagster.pipeline.variant_assets import CHECKPOINTS, JUDGMENTS, SCORES

EXPERIMENT = "experiment"


def judged_tables(scored: Mapping[str, ChosenBenchmark]) -> list[str]:
    """The assets that hold what a judge said, which the cost of a benchmark is told by."""
    return [f"{JUDGMENTS}/{name}" for name, chosen in scored.items() if chosen.scored.judging is not None]


def experiment_settings(config: Config, scored: Mapping[str, ChosenBenchmark]) -> dict[str, Any]:
    """What models are set against, and by what prices judgments are worth something, where there are some."""
    judge = config.evaluation.judge
    prices = None if judge is None or judge.prices is None else judge.prices.model_dump(mode="json")
    found = {"evaluation.reference": reference_of(config)}
    return {**found, "evaluation.judge.prices": prices} if judged_tables(scored) else found


def experiment_assets(config: Config) -> Iterator[Asset]:
    """Every benchmark's values of every variant, and what they cost; none where no benchmark gives any."""
    scored = scored_benchmarks(config)
    if not scored:
        return
    yield Asset(
        key=EXPERIMENT,
        maker="experiment",
        group="experiment",
        kinds=("polars",),
        summary="a row for each model and benchmark: value, interval, difference to the reference, what it took",
        description="Every model under every benchmark, with intervals by paired bootstrap over the questions, what is "
        "told apart from what, and what scoring, training and judging took.",
        reads=dict.fromkeys(
            [CHECKPOINTS, *judged_tables(scored), *(f"{SCORES}/{name}" for name in scored)], "fingerprint"
        ),
        settings=experiment_settings(config, scored),
        code_version=CODE_VERSION,
        columns=tables.EXPERIMENT,
        finite=("value", "probability_best"),
        checks=(FINITE_VALUES, *((GATE,) if config.evaluation.gate is not None else ())),
        goal=True,
        own_rejects=False,
    )
