"""Make the assets whose rows a model computes: `perplexity/<model>`, `cam`, and the methods' own tables.

One step scores shards with one model, in this process or in workers. One pass may serve several tables.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
import polars as pl

from assets.steps.definition import makes_asset
from assets.steps.metadata import effort_metadata, statistics, token_totals
from assets.steps.partitioned_step import Event, Finished, Stale, shard_events, stale_partitions
from assets.steps.progress import ScoringProgress, selected_assets
from assets.steps.step import asset_step
from gateau_dagster.config import ModelConfig
from gateau_dagster.demo.prepare import ensure_demo_pair
from gateau_dagster.execution.shard_scorer import ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.execution.shard_work import has_missing_rows
from gateau_dagster.pipeline.loadable import loadable_model, model_version, placed_model
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import TimedProgress
from resources.configuration import ConfigurationResource
from resources.models import ModelsResource
from resources.pools.pool import Costs, Pool, ScoringTask, Warn
from resources.pools.registry import chosen_pool

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


T = TypeVar("T")
Works = Mapping[str, Sequence[TableWork]]
Results = Generator[tuple[str, dict[str, ShardResult]]]


@makes_asset
def sample_table(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, models: ModelsResource
) -> Generator[Event]:
    """Score the stale shards of the requested tables; load no model if all rows are kept."""
    with asset_step(context, configuration) as progress:
        state = configuration.state()
        stale = {asset: stale_partitions(context, state, asset) for asset in selected_assets(context)}
        with closing(_finished(context, state, models, stale, progress)) as results:
            yield from shard_events(context, state, stale, results)


def _finished(
    context: dg.AssetExecutionContext,
    state: State,
    models: ModelsResource,
    stale: Stale,
    progress: TimedProgress,
) -> Generator[Finished]:
    works = _works(state, stale)
    missing = {shard: found for shard, found in works.items() if has_missing_rows(state.store, shard, found)}
    kept = {shard: found for shard, found in works.items() if shard not in missing}
    if missing:
        ensure_demo_pair(state.config, progress)
        missing = _with_plan(context, state, missing)
    pool = chosen_pool(state.config)
    devices = pool.devices(state.config, models.place(state.config), len(missing))
    sizes = state.store.stamps(("raw_long_sft", shard) for shard in works)
    shown = ScoringProgress(
        progress,
        sizes={shard: stamp.rows or 0 for (_, shard), stamp in sizes.items() if shard is not None and stamp},
        missing=missing,
        workers=len(devices),
    )
    shown.start()
    step = StepScoring(
        state=state,
        models=models,
        model=_model(state, stale),
        pool=pool,
        costs=_costs(context, state, missing),
        progress=shown,
        warn=context.log.warning,
    )
    with closing(step.on(devices, missing)) as scored:
        for shard, results in chain(step.here(kept, devices[0]), scored):
            shown.finish(shard)
            for asset, result in results.items():
                yield asset, shard, result, _figures(result)


def _figures(result: ShardResult) -> dict[str, Any]:
    return statistics(result.table) | token_totals(result.table) | effort_metadata(result.stamp.effort)


def _model(state: State, stale: Stale) -> str:
    """Return the model that computes these tables; they share one."""
    (model,) = {table.model for asset in stale if (table := state.asset(asset).table) is not None}
    return model


def _works(state: State, stale: Stale) -> Works:
    """Return the work on each shard, in the order of the shards."""
    return {
        shard: [
            TableWork(
                asset=asset,
                columns=state.asset(asset).columns,
                stamp=shards[shard],
                memory=state.asset(asset).means,
            )
            for asset, shards in stale.items()
            if shard in shards
        ]
        for shard in sorted({shard for shards in stale.values() for shard in shards})
    }


def _with_plan(context: dg.AssetExecutionContext, state: State, works: Works) -> Works:
    """Return the work with its estimated effort."""
    from gateau_dagster.estimate.estimator import Estimator

    estimates = _estimated(context, lambda: Estimator(state).shards(_shards(works)))
    if estimates is None:
        return works
    # A method need not declare the cost of its own table.
    planned = {key: asdict(estimate) for key, estimate in estimates.items() if estimate.tokens is not None}
    return {
        shard: [replace(work, planned=planned.get((work.asset, shard), {})) for work in found]
        for shard, found in works.items()
    }


def _costs(context: dg.AssetExecutionContext, state: State, works: Works) -> Costs:
    """Return a function from shard to the cost of each sample; empty if the estimate fails. It runs on first use."""
    from gateau_dagster.estimate.estimator import Estimator

    all_costs = cache(lambda: _estimated(context, lambda: Estimator(state).costs(_shards(works))))

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
        context.log.warning(f"What this takes cannot be estimated: {error}", exc_info=True)
        return None


def _shards(works: Works) -> dict[str, list[str]]:
    """Return the shards to score, grouped by asset."""
    found: dict[str, list[str]] = {}
    for shard, tables in works.items():
        for work in tables:
            found.setdefault(work.asset, []).append(shard)
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

    def on(self, devices: Sequence[str], works: Works) -> Results:
        """Score in one worker per device, or in this process if there is a single local device."""
        here = len(devices) == 1 and not self.pool.elsewhere
        return self.here(works, devices[0]) if here else self._in_workers(works, devices)

    def here(self, works: Works, device: str) -> Results:
        """Score in this process, one shard after the other."""
        scorer = ShardScorer(self.state.config, self.model, lambda: self._load(device))
        for shard, found in works.items():
            yield shard, scorer.compute(self.state.store, shard, found, self.progress.report)

    @cached_property
    def _section(self) -> ModelConfig:
        """Return the section of the model, fetched once per step if the store is not local."""
        return loadable_model(self.state, self.model)

    def _load(self, device: str) -> "LoadedModel":
        version = model_version(self.state, self.model)
        found = self.models.load(self.state.config, self._section, version=version, device=device)
        self.progress.loaded()
        return found

    def _in_workers(self, works: Works, devices: Sequence[str]) -> Results:
        """Score in workers, each of which loads the model once."""
        if not works:
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
            yield from workers.results(works, self.progress.report)
