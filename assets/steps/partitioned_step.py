"""Run one step over many shards: load a model once, record each shard when done, skip current ones."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from assets.steps.event_log import PLAN_TAG, recorded_versions
from assets.steps.many_partitions import figures_only, has_many
from assets.steps.metadata import DATA_VERSION_TAG, first_histogram, preview, rows_last, table_metadata
from assets.steps.partitions import asked_partitions, asset_key, no_event_for_output
from gateau_dagster.execution.shard_tables import ShardResult
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp

Event = dg.AssetMaterialization | dg.Output
Finished = tuple[str, str, ShardResult, dict[str, Any]]
Stale = Mapping[str, Mapping[str, Stamp]]


def stale_partitions(context: dg.AssetExecutionContext, state: State, asset: str) -> dict[str, Stamp]:
    """Return the requested partitions that are out of date, with the stamp that each will get."""
    wanted = {shard: state.wanted_stamp(asset, shard) for shard in _asked(context, state, asset)}
    found = state.table_stamps((asset, shard) for shard in wanted)
    return {
        shard: stamp
        for shard, stamp in wanted.items()
        if not state.asset(asset).is_current(found[asset, shard], stamp.fingerprint)
    }


def shard_events(
    context: dg.AssetExecutionContext, state: State, stale: Stale, results: Iterator[Finished]
) -> Iterator[Event]:
    """Yield the record of each stale shard as `results` finishes it: asset, shard, result, metadata of its own.

    Current shards cost nothing. A backfill needs their records again, since it takes a shard without one as failed.
    `refresh` requests a range, and means only the stale shards in it.

    Args:
        stale: by asset, for every asset that the step is asked for.
    """
    for asset, shards in stale.items():
        yield from known_partitions(context, state, asset, shards)
    done, many = dict.fromkeys(stale, 0), {asset: has_many(state.pipeline, asset) for asset in stale}
    for asset, shard, result, extra in results:
        done[asset] += 1
        if not many[asset]:  # otherwise the step's progress reports it every 15 seconds
            context.log.info(
                f"{asset}, shard {shard} ({done[asset]} of {len(stale[asset])}): {result.computed} samples computed, "
                f"{result.reused} kept, {result.rejected.height} rejected"
            )
        metadata = _shard_metadata(result, pictures=not many[asset]) | extra
        yield materialisation(state, asset, shard, result.stamp, metadata)
    yield from outputs(context, stale)


def outputs(context: dg.AssetExecutionContext, assets: Iterable[str]) -> Iterator[dg.Output]:
    """Yield the step's outputs, whose partitions are on record already."""
    with no_event_for_output(context):
        for asset in assets:
            yield dg.Output(None, context.output_for_asset_key(asset_key(asset)))


def known_partitions(
    context: dg.AssetExecutionContext, state: State, asset: str, stale: Collection[str]
) -> Iterator[dg.AssetMaterialization]:
    """Yield the records of requested partitions that are current, if the run or Dagster needs a new record."""
    current = [part for part in _asked(context, state, asset) if part not in stale]
    if not current:
        return
    what = f"{len(current)} {state.asset(asset).partitions}s"
    context.log.info(f"{what} are up to date and stay as they are: {', '.join(current[:20])}")
    versions = recorded_versions(context.instance, asset, current)
    for (_, shard), stamp in state.table_stamps((asset, shard) for shard in current).items():
        assert shard is not None and stamp is not None
        if versions.get(shard) != stamp.fingerprint or PLAN_TAG not in context.run.tags:
            yield materialisation(state, asset, shard, stamp, {"up_to_date": "kept: nothing changed"})


def _asked(context: dg.AssetExecutionContext, state: State, asset: str) -> list[str]:
    keys = state.pipeline.partitions(asset)
    return asked_partitions(context, [key for key in keys if key is not None])


def _shard_metadata(result: ShardResult, *, pictures: bool) -> dict[str, Any]:
    return {
        **table_metadata("", result.stamp, result.rejected, whole=False),
        **(preview(result.table) | first_histogram(result.table) if pictures else {}),
        "samples_computed": result.computed,
        "samples_kept": result.reused,
    }


def materialisation(
    state: State, asset: str, partition: str, stamp: Stamp, metadata: dict[str, Any]
) -> dg.AssetMaterialization:
    """Return the record of one partition, with its own data version."""
    whole = rows_last(metadata | table_metadata(state.store.address(asset, partition), stamp, whole=False))
    return dg.AssetMaterialization(
        asset_key(asset),
        partition=partition,
        metadata=figures_only(whole) if has_many(state.pipeline, asset) else whole,
        tags={DATA_VERSION_TAG: stamp.fingerprint},
    )
