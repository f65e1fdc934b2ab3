"""What the answers of a plan should take, by those to the same questions that this store holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from gateau_dagster.estimate.amount import Amount
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_assets import ANSWERS

_WITHIN = 1.5


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """What one model's answers to a benchmark took on average over those models that answered."""

    questions: int
    seconds: float


def planned_answers(state: State, plan: Plan) -> list[Amount]:
    """By benchmark, the models that are to answer; those that answered some of the questions count whole."""
    recorded = {name: each for name in scored_benchmarks(state.config) if (each := _recorded(state, name)) is not None}
    found = []
    for name in scored_benchmarks(state.config):
        work = plan.of(f"{ANSWERS}/{name}")
        if work is not None:
            found.append(_amount(f"{ANSWERS}/{name}", len(work.partitions), name, recorded))
    return found


def _amount(asset: str, models: int, name: str, recorded: Mapping[str, _Recorded]) -> Amount:
    own = recorded.get(name)
    seconds = None if own is None else own.seconds * models
    return Amount(
        asset=asset,
        models=models,
        amount=None if own is None else own.questions * models,
        unit="questions",
        seconds_low=seconds and seconds / _WITHIN,
        seconds_high=seconds and seconds * _WITHIN,
        grounds="not known before one model has answered" if own is None else "the answers of this store",
    )


def _recorded(state: State, name: str) -> _Recorded | None:
    """Answers of a server come side by side, those of this process count their share of a batch."""
    asset, engine = f"{ANSWERS}/{name}", state.config.evaluation.engine
    stamps = state.store.stamps((asset, variant) for variant in state.config.variant_set)
    made = [variant for (_, variant), stamp in stamps.items() if stamp is not None]
    tables = [state.store.read(asset, variant, ["question_id", "seconds"]) for variant in made]
    if not any(table.height for table in tables):
        return None
    whole = pl.concat(tables)
    return _Recorded(
        questions=whole["question_id"].n_unique(),
        seconds=float(whole["seconds"].sum()) / len(tables) / (engine.concurrency if engine is not None else 1),
    )
