"""One step for one table over the whole data set: skipped when it is up to date, stamped when it is made."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import polars as pl

from assets.metadata import table_metadata
from assets.step import asset_step
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource

Made = tuple[Stamp, dict[str, Any]]
Make = Callable[[State, Stamp, Progress], Made]


def materialise(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, asset: str, make: Make
) -> dg.MaterializeResult:
    """Makes the asset unless the store holds it, made from the same.

    Args:
        make: writes the output with the stamp it is given; returns the completed stamp and metadata.

    Raises:
        dagster.Failure: with a readable reason.
    """
    with asset_step(context, configuration) as progress:
        state = configuration.state()
        wanted, found = state.wanted_stamp(asset, None), state.stamp(asset, None)
        if found is not None and found.fingerprint == wanted.fingerprint:
            context.log.info(f"{asset} is up to date and stays as it is")
            stamp, metadata = found, {"up_to_date": "kept: nothing changed"}
        else:
            stamp, metadata = make(state, wanted, progress)
    return dg.MaterializeResult(
        metadata={"fingerprint": stamp.fingerprint, **metadata}, data_version=dg.DataVersion(stamp.fingerprint)
    )


def write_global(
    state: State, asset: str, stamp: Stamp, table: pl.DataFrame, rejected: pl.DataFrame | None = None
) -> Made:
    """Writes a global table; returns what `materialise` wants."""
    complete = state.store.write(table, asset, None, stamp, rejected)
    return complete, table_metadata(state.store.address(asset), complete, rejected)
