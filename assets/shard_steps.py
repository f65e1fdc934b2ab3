"""One step, many shards: loads a model once, records each shard as it is done, skips those that are up to date."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets.metadata import DATA_VERSION_TAG, table_metadata
from assets.partitions import asked_shards, no_event_for_output
from assets.records import PLAN_TAG, recorded_versions
from gateau_dagster.incremental.shard_work import ShardResult
from gateau_dagster.incremental.state import State
from gateau_dagster.storage import Stamp

Event = dg.AssetMaterialization | dg.Output
Finished = tuple[str, ShardResult, dict[str, Any]]


def stale_shards(context: dg.AssetExecutionContext, state: State, asset: str) -> dict[str, Stamp]:
    """The asked shards whose stored table was not made from what is wanted now, with the stamp each is to get."""
    wanted = {shard: state.wanted_stamp(asset, shard) for shard in asked_shards(context, state.shards)}
    found = state.store.stamps((asset, shard) for shard in wanted)
    return {
        shard: stamp
        for shard, stamp in wanted.items()
        if not state.node(asset).is_current(found[asset, shard], stamp.fingerprint)
    }


def shard_events(
    context: dg.AssetExecutionContext, state: State, asset: str, stale: dict[str, Stamp], results: Iterator[Finished]
) -> Iterator[Event]:
    """Yields the record of each stale shard as `results` finishes it (with metadata of its own).

    Shards that are up to date cost nothing. They are recorded again for whoever asked for them: a backfill takes a
    shard without a record for a failed one. `refresh` asks for a range, and means only the stale ones in it.
    """
    yield from _known_shards(context, state, asset, stale)
    for number, (shard, result, extra) in enumerate(results, start=1):
        context.log.info(
            f"shard {shard} ({number} of {len(stale)}): {result.computed} samples computed, {result.reused} kept, "
            f"{result.rejected.height} rejected"
        )
        yield _materialisation(context, state, asset, shard, result.stamp, _shard_metadata(result) | extra)
    with no_event_for_output(context):
        yield dg.Output(None)


def _known_shards(
    context: dg.AssetExecutionContext, state: State, asset: str, stale: dict[str, Stamp]
) -> Iterator[dg.AssetMaterialization]:
    current = [shard for shard in asked_shards(context, state.shards) if shard not in stale]
    if not current:
        return
    context.log.info(f"{len(current)} shards are up to date and stay as they are: {', '.join(current[:20])}")
    versions = recorded_versions(context.instance, asset, current)
    for shard in current:
        stamp = state.stamp(asset, shard)
        assert stamp is not None
        if versions.get(shard) != stamp.fingerprint or PLAN_TAG not in context.run.tags:
            yield _materialisation(context, state, asset, shard, stamp, {"up_to_date": "kept: nothing changed"})


def _shard_metadata(result: ShardResult) -> dict[str, Any]:
    return {
        **table_metadata("", result.stamp, result.rejected),
        "samples_computed": result.computed,
        "samples_kept": result.reused,
    }


def _materialisation(
    context: dg.AssetExecutionContext, state: State, asset: str, shard: str, stamp: Stamp, metadata: dict[str, Any]
) -> dg.AssetMaterialization:
    common = table_metadata(state.store.address(asset, shard), stamp)
    return dg.AssetMaterialization(
        context.asset_key,
        partition=shard,
        metadata=metadata | common,
        tags={DATA_VERSION_TAG: stamp.fingerprint},
    )
