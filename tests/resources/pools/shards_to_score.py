"""A project whose samples are in the store and wait for their scores; what a process without workers makes of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateau_dagster.data.ingest import read_shards
from gateau_dagster.execution.shard_scorer import ShardReport, ShardScorer
from gateau_dagster.execution.shard_tables import ShardResult, TableWork
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from resources.models import ModelsResource
from tests.project import make_project

ASSETS = ("perplexity/long", "cam")
Works = Mapping[str, list[TableWork]]


def ingested(folder: Path, *, samples: int, shards: int, **sections: Any) -> State:
    state = State(config=load_project(make_project(folder, samples=samples, shards=shards, **sections)))
    config = state.config
    numbers = [int(shard) for shard in state.shards]
    for number, table, rejected in read_shards(config.located_long_sft, config.folder, state.index, numbers):
        shard = state.shards[number]
        state.store.write(table, "raw_long_sft", shard, state.wanted_stamp("raw_long_sft", shard), rejected)
    return state


def works(state: State, **planned: Any) -> dict[str, list[TableWork]]:
    """`planned`: of the first table of the first shard."""
    found = {
        shard: [
            TableWork(
                asset=asset, columns=state.asset(asset).columns, stamp=state.wanted_stamp(asset, shard), memory="m"
            )
            for asset in ASSETS
        ]
        for shard in state.shards
    }
    first = found[state.shards[0]]
    first[0] = replace(first[0], **planned)
    return found


def alone(state: State, shard: str, works: list[TableWork]) -> dict[str, ShardResult]:
    """What this process computes, when none of it is there."""
    for asset in ASSETS:
        state.store.files.remove(state.store.table_name(asset, shard))
    config, models = state.config, ModelsResource()
    scorer = ShardScorer(config, "long", lambda: models.load(config, config.models["long"], version=""))
    return scorer.compute(state.store, shard, works, ignore)


def ignore(report: ShardReport) -> None:
    del report
