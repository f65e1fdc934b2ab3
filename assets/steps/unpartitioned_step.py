"""Run one step for one output over the whole data set: skip it if current, stamp it when made."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
import polars as pl

from assets.steps.metadata import preview, rows_last, table_metadata
from assets.steps.step import asset_step
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import TimedProgress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


@dataclass(kw_only=True)
class UnpartitionedStep:
    """The inputs and the results of an asset's step.

    asset: its key. wanted: the stamp that its output will get. found: the stamp of the output in the store.
    """

    asset: str
    state: State
    wanted: Stamp
    found: Stamp | None
    progress: TimedProgress
    metadata: dict[str, Any] = field(default_factory=dict)
    made: Stamp | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether the output is out of date."""
        return not self.state.asset(self.asset).is_current(self.found, self.wanted.fingerprint)

    def write(
        self,
        table: pl.DataFrame,
        rejected: pl.DataFrame | None = None,
        *,
        content: str = "",
        absent: Iterable[str] = (),
        given: int | None = None,
    ) -> None:
        """Write the asset's table. `content`: digest of what counts of it downstream; of the whole table if empty.

        absent: ids of missing rows that another try may give; see Stamp.without. given: see Stamp.
        """
        stamp = self.wanted.without(absent, self.state.asset(self.asset).means)
        stamp = replace(stamp, content=content or stamp.content, given=given)
        stamp = self.state.store.write(table, self.asset, None, stamp, rejected)
        self.finish(stamp, **table_metadata(self.state.store.address(self.asset), stamp, rejected), **preview(table))

    def finish(self, stamp: Stamp, **metadata: Any) -> None:
        """Note that the output is in the store, with this stamp."""
        self.made = stamp
        self.metadata |= metadata

    @property
    def result(self) -> dg.MaterializeResult:
        """Return what Dagster records: the metadata, and the fingerprint as data version."""
        stamp = self.made or self.found
        assert stamp is not None, f"{self.asset} was not made"
        kept = {} if self.made is not None else {"up_to_date": "kept: nothing changed"}
        return dg.MaterializeResult(
            metadata=rows_last({"fingerprint": stamp.fingerprint, **kept, **self.metadata}),
            data_version=dg.DataVersion(stamp.fingerprint),
        )


@contextmanager
def unpartitioned_step(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource
) -> Iterator[UnpartitionedStep]:
    """Yield the step of the asset that the context names.

    Raises:
        dagster.Failure: with a readable reason.
    """
    asset = context.asset_key.to_user_string()
    with asset_step(context, configuration) as progress:
        state = configuration.state()
        step = UnpartitionedStep(
            asset=asset,
            state=state,
            wanted=state.wanted_stamp(asset, None),
            found=state.stamp(asset, None),
            progress=progress,
        )
        if not step.is_stale:
            context.log.info(f"{asset} is up to date and stays as it is")
        yield step
