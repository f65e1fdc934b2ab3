"""Make the assets whose rows a model computes: `perplexity/<model>`, `cam`, and the methods' own tables.

One step scores shards with one model, in this process or in workers. One pass may serve several tables.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

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
from gateau_dagster.scoring.sample_table import SampleTable

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel


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
    pool = chosen_pool(state.config)
    devices = pool.devices(state.config, models.place(state.config), len(missing))
    sizes = state.store.stamps(("raw_long_sft", shard.shard) for shard in shards)
    (model,) = {table.model for asset in step.assets if (table := state.asset(asset).table) is not None}
    lengths, count = text_lengths(state, model), sum(len(shard.lacking) for shard in missing)
    shown = ScoringProgress(
        step.progress,
        kept=sum(stamp.rows or 0 for stamp in sizes.values() if stamp) - count,
        missing=count,
        work={shard.shard: _work(shard, lengths(shard.shard)) for shard in missing},
        workers=len(devices),
    )
    shown.start()
    scoring = StepScoring(
        state=state,
        models=models,
        model=model,
        pool=pool,
        costs=lengths,
        progress=shown,
        warn=step.log.warning,
    )
    kept = [shard for shard in shards if not shard.lacking]
    with closing(scoring.on(devices, missing)) as scored:
        # Shards whose rows are all kept come first: they need no model, and so are on record at once.
        for shard, results in chain(scoring.here(kept, devices[0]), scored):
            shown.finish(shard)
            yield shard, results


def _shards(step: Step) -> list[Piece]:
    works: dict[str, list[TableWork]] = {}
    for output in step.stale:
        asset = step.state.asset(output.asset)
        derivation = None if asset.table is None else asset.table.derivation
        work = TableWork(
            asset=asset.key,
            columns=asset.columns,
            stamp=output.wanted,
            memory=asset.means,
            derivation=derivation,
        )
        works.setdefault(str(output.partition), []).append(work)
    return [Piece.whole(step.state.store, shard, works[shard]) for shard in sorted(works)]


_CHARACTERS_PER_TOKEN = 4  # roughly, in English; only the proportion of the samples to one another matters


def text_lengths(state: State, model: str) -> Costs:
    """Return a function from a shard to the characters of its samples that the model about reads."""
    limits = (state.config.scoring.max_length, state.config.models[model].window)
    most = min((limit for limit in limits if limit is not None), default=None)
    characters = pl.col("characters").clip(upper_bound=None if most is None else _CHARACTERS_PER_TOKEN * most)
    columns = state.index.accepted.select("shard", "sample_id", characters)
    by_shard = columns.partition_by("shard", as_dict=True, include_key=False)

    def lengths(shard: str) -> Mapping[str, float]:
        found = by_shard.get((int(shard),))
        return {} if found is None else dict(found.iter_rows())

    return lengths


def _work(shard: Piece, lengths: Mapping[str, float]) -> float:
    return sum(lengths.get(sample_id, 0.0) for sample_id in shard.lacking)


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
        scorer = ShardScorer(
            self.state.config, self._tables, self.model, lambda: self._load(device), self.progress.report
        )
        for shard in shards:
            yield shard.shard, scorer.shard(self.state.store, shard)

    def _tables(self) -> dict[str, SampleTable]:
        return {asset.key: asset.table for asset in self.state.pipeline.assets if asset.table is not None}

    @cached_property
    def _section(self) -> ModelConfig:
        # Cached, since each call would fetch the model of a store elsewhere.
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
