"""A project whose samples are in the store and wait for their scores; what a process without workers makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateau_dagster.data.index import read_shards
from gateau_dagster.execution.shard_scorer import Report, ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import Piece, ShardResult, TableWork
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.models import ModelsResource
from tests.kit.project import make_project

ASSETS = ("perplexity/long", "cam")


def ingested(folder: Path, *, samples: int, shards: int, **sections: Any) -> State:
    state = state_of(config=load_project(make_project(folder, samples=samples, shards=shards, **sections)))
    config = state.config
    numbers = [int(shard) for shard in state.shards]
    for number, table, rejected in read_shards(config.located_long_sft, state.index, numbers):
        shard = state.shards[number]
        state.store.write(table, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state


def pieces(
    state: State, *, assets: Sequence[str] = ASSETS, every: Mapping[str, Any] | None = None, **first: Any
) -> list[Piece]:
    """The shards. `every`: changes of all tables; `first`: of the first table of the first shard."""
    found = []
    for shard in state.shards:
        works = [
            TableWork(
                asset=asset, columns=state.asset(asset).columns, stamp=state.wanted_stamp(asset, shard), memory="m"
            )
            for asset in assets
        ]
        works = [_changed(work, **every or {}) for work in works]
        if not found:
            works[0] = _changed(works[0], **first)
        found.append(Piece.whole(state.store, shard, works))
    return found


def _changed(work: TableWork, effort: Mapping[str, Any] | None = None, **changes: Any) -> TableWork:
    return replace(work, stamp=replace(work.stamp, effort={} if effort is None else effort), **changes)


def ignore(report: ShardReport) -> None:
    del report


def alone(state: State, shard: Piece, report: Report = ignore) -> dict[str, ShardResult]:
    """What this process computes, when none of it is there."""
    for asset in ASSETS:
        state.store.files.remove(state.store.table_name(asset, shard.shard))
    config, models = state.config, ModelsResource()
    scorer = ShardScorer(
        config,
        lambda: all_sample_tables(config),
        "long",
        lambda: models.load(config, config.models["long"], version=""),
        report,
    )
    return scorer.shard(state.store, Piece.whole(state.store, shard.shard, shard.works))
