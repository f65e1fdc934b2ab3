"""An experiment of three benchmarks as the report takes it, made up."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.evaluation.registry import ChosenBenchmark
from gateau_dagster.evaluation.statistics.experiment import Cost, experiment_rows
from gateau_dagster.report.experiment import ExperimentInputs
from tests.evaluation.statistics.builders import LINES, chosen, experiment_scores

LENGTHS, DEPTHS = (1000, 4000, 16000, 60000), (0.1, 0.3, 0.5, 0.7, 0.9)
RANGES = ("0–4k", "4–8k", "8k+")
_COSTS = {"base": (None, None, None), "full": (10_000, 81_000_000, 0.0)}


def cell_of(question_id: str) -> tuple[int, float]:
    """Length and depth of a needle's question."""
    length, depth = question_id.split("/")
    return int(length), float(depth)


def haystack_scores() -> dict[str, pl.DataFrame]:
    """Found or not, by length and depth; selected samples help with the long ones."""
    rng, found = np.random.default_rng(5), {}
    for line in LINES:
        for name in line.variants:
            rows = [
                (f"{length}/{depth}", str(length), float(rng.random() < share(line.name, length)))
                for length in LENGTHS
                for depth in DEPTHS
            ]
            found[name] = pl.DataFrame(rows, schema=tables.schema(tables.SCORES), orient="row")
    return found


def share(model: str, length: int) -> float:
    """How often a model finds a needle."""
    return 0.2 if model == "base" else 1.0 if length < 10_000 else 0.75 if model.startswith("robust") else 0.45


def losses() -> dict[str, pl.DataFrame]:
    """Mean NLL of held-out responses, of the same variants."""
    values = experiment_scores(questions=64, groups=("0–512", "512–1024"), seed=9)
    return {name: table.with_columns(value=4.0 - pl.col("value") / 40) for name, table in values.items()}


def experiment_inputs(names: Sequence[str] = ("quiz", "haystack", "losses")) -> ExperimentInputs:
    """Quiz: by task and length, with a floor. Haystack: a grid. Losses: less is better."""
    benchmarks = {
        "quiz": chosen(
            "quiz", title="A quiz", floor=20.0, groupings={"length": lambda name: RANGES[int(name[1:]) // 3 % 3]}
        ),
        "haystack": chosen("haystack", title="A haystack", unit="share found", grid=cell_of),
        "losses": chosen("losses", title="Losses", unit="NLL", higher=False),
    }
    scores = {"quiz": experiment_scores(), "haystack": haystack_scores(), "losses": losses()}
    return inputs_of({name: benchmarks[name] for name in names}, {name: scores[name] for name in names})


def inputs_of(
    benchmarks: dict[str, ChosenBenchmark], scores: dict[str, dict[str, pl.DataFrame]], reference: str = "full"
) -> ExperimentInputs:
    """The table is the experiment's own; costs are made up."""
    costs = {name: _cost(line.name, line.series) for line in LINES for name in line.variants}
    rows = [
        experiment_rows(each, LINES, scores[name], costs, reference=reference, draws=300)
        for name, each in benchmarks.items()
    ]
    return ExperimentInputs(
        table=pl.concat(rows), lines=LINES, scores=scores, benchmarks=benchmarks, reference=reference
    )


def _cost(model: str, series: str) -> Cost:
    if not series:
        samples, tokens, scoring = _COSTS[model]
        trained = None if samples is None else 11.5
        return Cost(samples=samples, tokens=tokens, scoring_hours=scoring, training_hours=trained)
    part = float(model[-3:])
    return Cost(
        samples=int(10_000 * part),
        tokens=int(81_000_000 * part),
        scoring_hours=6.2 if series == "robust" else 0.0,
        training_hours=11.5 * part,
        judge_cost=1.25,
    )
