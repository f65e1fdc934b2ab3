"""One step, many shards: loads a model once, records each shard as it is done, skips those that are up to date."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dagster as dg

from assets.steps.event_log import PLAN_TAG, recorded_versions
from assets.steps.metadata import DATA_VERSION_TAG, table_metadata
from assets.steps.partitions import asked_shards, asset_key, no_event_for_output
from gateau_dagster.execution.shard_work import ShardResult
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp

Event = dg.AssetMaterialization | dg.Output
Finished = tuple[str, str, ShardResult, dict[str, Any]]
Stale = Mapping[str, Mapping[str, Stamp]]


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
    context: dg.AssetExecutionContext, state: State, stale: Stale, results: Iterator[Finished]
) -> Iterator[Event]:
    """Yields the record of each stale shard as `results` finishes it: asset, shard, result, metadata of its own.

    Shards that are up to date cost nothing. They are recorded again for whoever asked for them: a backfill takes a
    shard without a record for a failed one. `refresh` asks for a range, and means only the stale ones in it.

    Args:
        stale: by asset, for every asset that the step is asked for.
    """
    for asset, shards in stale.items():
        yield from _known_shards(context, state, asset, shards)
    done = dict.fromkeys(stale, 0)
    for asset, shard, result, extra in results:
        done[asset] += 1
        context.log.info(
            f"{asset}, shard {shard} ({done[asset]} of {len(stale[asset])}): {result.computed} samples computed, "
            f"{result.reused} kept, {result.rejected.height} rejected"
        )
        yield _materialisation(state, asset, shard, result.stamp, _shard_metadata(result) | extra)
    with no_event_for_output(context):
        for asset in stale:
            yield dg.Output(None, context.output_for_asset_key(asset_key(asset)))


def _known_shards(
    context: dg.AssetExecutionContext, state: State, asset: str, stale: Collection[str]
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
            yield _materialisation(state, asset, shard, stamp, {"up_to_date": "kept: nothing changed"})


def _shard_metadata(result: ShardResult) -> dict[str, Any]:
    return {
        **table_metadata("", result.stamp, result.rejected),
        "samples_computed": result.computed,
        "samples_kept": result.reused,
    }


def _materialisation(
    state: State, asset: str, shard: str, stamp: Stamp, metadata: dict[str, Any]
) -> dg.AssetMaterialization:
    common = table_metadata(state.store.address(asset, shard), stamp)
    return dg.AssetMaterialization(
        asset_key(asset),
        partition=shard,
        metadata=metadata | common,
        tags={DATA_VERSION_TAG: stamp.fingerprint},
    )
