"""Make the assets whose rows a model computes: `perplexity/<model>`, `cam`, and the methods' own tables.

One step scores shards with one model, in this process or in workers. One pass may serve several tables.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import dagster as dg
import polars as pl

from gateau_dagster.assets.steps.metadata import effort_metadata, statistics, token_totals
from gateau_dagster.assets.steps.progress import ScoringProgress
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.config import ModelConfig
from gateau_dagster.execution.shard_scorer import ShardScorer
from gateau_dagster.execution.shard_tables import Piece, ShardResult, TableWork
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.loadable import loadable_model, model_version, placed_model
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.models import ModelsResource
from gateau_dagster.resources.pools.pool import Costs, Pool, ScoringTask, Warn, chosen_pool

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


T = TypeVar("T")
Shards = Sequence[Piece]
Results = Generator[tuple[str, dict[str, ShardResult]]]


@makes_asset
def sample_table(step: Step, models: ModelsResource) -> None:
    """Score the stale shards of the requested tables; load no model if all rows are kept."""
    outputs = {(output.asset, output.partition): output for output in step.stale}
    with closing(_scored(step, models)) as scored:
        for shard, results in scored:
            for asset, result in results.items():
                figures = statistics(result.table) | token_totals(result.table) | effort_metadata(result.stamp.effort)
                outputs[asset, shard].finish_shard(result, **figures)
                step.record(outputs[asset, shard])


def _scored(step: Step, models: ModelsResource) -> Results:
    state, shards = step.state, _shards(step)
    missing = [shard for shard in shards if shard.lacking]
    if missing:
        prepare_inputs(state.config, "models", step.progress)
        missing = _with_plan(step.context, state, missing)
    pool = chosen_pool(state.config)
    devices = pool.devices(state.config, models.place(state.config), len(missing))
    sizes = state.store.stamps(("raw_long_sft", shard.shard) for shard in shards)
    shown = ScoringProgress(
        step.progress,
        sizes={shard: stamp.rows or 0 for (_, shard), stamp in sizes.items() if shard is not None and stamp},
        missing=missing,
        workers=len(devices),
    )
    shown.start()
    (model,) = {table.model for asset in step.assets if (table := state.asset(asset).table) is not None}
    scoring = StepScoring(
        state=state,
        models=models,
        model=model,
        pool=pool,
        costs=_costs(step.context, state, missing),
        progress=shown,
        warn=step.log.warning,
    )
    kept = [shard for shard in shards if not shard.lacking]
    with closing(scoring.on(devices, missing)) as scored:
        for shard, results in chain(scoring.here(kept, devices[0]), scored):
            shown.finish(shard)
            yield shard, results


def _shards(step: Step) -> list[Piece]:
    works: dict[str, list[TableWork]] = {}
    for output in step.stale:
        asset = step.state.asset(output.asset)
        work = TableWork(asset=asset.key, columns=asset.columns, stamp=output.wanted, memory=asset.means)
        works.setdefault(str(output.partition), []).append(work)
    return [Piece.whole(step.state.store, shard, works[shard]) for shard in sorted(works)]


def _with_plan(context: dg.AssetExecutionContext, state: State, shards: Shards) -> list[Piece]:
    """Return the work with its estimated effort."""
    from gateau_dagster.estimate.estimator import Estimator

    estimates = _estimated(context, lambda: Estimator(state).shards(_by_asset(shards))) or {}
    # A method need not declare the cost of its table.
    planned = {key: estimate.planned for key, estimate in estimates.items() if estimate.tokens is not None}
    return [
        replace(
            shard,
            works=[replace(work, planned=planned.get((work.asset, shard.shard), {})) for work in shard.works],
        )
        for shard in shards
    ]


def _costs(context: dg.AssetExecutionContext, state: State, shards: Shards) -> Costs:
    """Return a function from shard to the cost of each sample; empty if the estimate fails. It runs on first use."""
    from gateau_dagster.estimate.estimator import Estimator

    all_costs = cache(lambda: _estimated(context, lambda: Estimator(state).costs(_by_asset(shards))))

    def costs(shard: str) -> Mapping[str, float]:
        found = all_costs()
        if found is None:
            return {}
        return dict(found.filter(pl.col("shard") == int(shard)).select("sample_id", "cost").iter_rows())

    return costs


def _estimated(context: dg.AssetExecutionContext, estimate: Callable[[], T]) -> T | None:
    """Return the estimate, or None with a warning: a failed estimate must not end the run."""
    try:
        return estimate()
    except Exception as error:
        context.log.warning(f"The cost of this step cannot be estimated: {error}", exc_info=True)
        return None


def _by_asset(shards: Shards) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for shard in shards:
        for work in shard.works:
            found.setdefault(work.asset, []).append(shard.shard)
    return found


@dataclass(frozen=True, kw_only=True)
class StepScoring:
    """The scoring of one step with one model, in this process or in workers. Results come by shard and asset."""

    state: State
    models: ModelsResource
    model: str
    pool: Pool
    costs: Costs
    progress: ScoringProgress
    warn: Warn

    def on(self, devices: Sequence[str], shards: Shards) -> Results:
        """Score in one worker per device, or in this process if there is a single local device."""
        here = len(devices) == 1 and not self.pool.elsewhere
        return self.here(shards, devices[0]) if here else self._in_workers(shards, devices)

    def here(self, shards: Shards, device: str) -> Results:
        """Score in this process, one shard after the other."""
        scorer = ShardScorer(self.state.config, self.model, lambda: self._load(device), self.progress.report)
        for shard in shards:
            yield shard.shard, scorer.shard(self.state.store, shard)

    @cached_property
    def _section(self) -> ModelConfig:
        """Return the section of the model, fetched once per step if the store is not local."""
        return loadable_model(self.state, self.model)

    def _load(self, device: str) -> "LoadedModel":
        version = model_version(self.state, self.model)
        found = self.models.load(self.state.config, self._section, version=version, device=device)
        self.progress.loaded()
        return found

    def _in_workers(self, shards: Shards, devices: Sequence[str]) -> Results:
        """Score in workers, each of which loads the model once."""
        if not shards:
            return
        self.models.release()  # the first worker needs the memory
        state = self.state
        task = ScoringTask(
            config=state.config,
            model=self.model,
            placed=placed_model(state, self.model),
            section=None if self.pool.elsewhere else self._section,
            devices=devices,
            costs=self.costs,
        )
        with self.pool.workers(task, self.warn) as workers:
            yield from workers.results(shards, self.progress.report)
