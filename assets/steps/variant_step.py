"""Run one step over many variants: make the stale ones in turn, and record each when done."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg
import polars as pl

from assets.steps.metadata import preview, table_metadata
from assets.steps.partitioned_step import Event, known_partitions, materialisation, outputs, stale_partitions
from assets.steps.step import asset_step
from gateau_dagster.config.variants import Variant
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import TimedProgress
from gateau_dagster.storage import Stamp
from resources.configuration import ConfigurationResource


@dataclass(kw_only=True)
class VariantStep:
    """The inputs and the results of one variant's part of a step.

    asset: its key. variant: the partition. wanted: the stamp that its table will get. progress: shows the variant.
    metadata: of its record in Dagster.
    """

    asset: str
    variant: Variant
    state: State
    wanted: Stamp
    progress: TimedProgress
    context: dg.AssetExecutionContext
    metadata: dict[str, Any] = field(default_factory=dict)
    made: Stamp | None = None

    def write(
        self,
        table: pl.DataFrame,
        rejected: pl.DataFrame | None = None,
        *,
        content: str = "",
        absent: Iterable[str] = (),
    ) -> None:
        """Write the variant's table. `content`: digest of what counts of it downstream; of the whole table if empty.

        absent: ids of missing rows that another try may give; see Stamp.without.
        """
        stamp = self.wanted.without(absent, self.state.asset(self.asset).means)
        stamp = replace(stamp, content=content or stamp.content)
        store, name = self.state.store, self.variant.name
        self.made = store.write(table, self.asset, name, stamp, rejected)
        self.metadata |= table_metadata(store.address(self.asset, name), self.made, rejected, whole=False)
        self.metadata |= preview(table)


def variant_events(
    context: dg.AssetExecutionContext, configuration: ConfigurationResource, make: Callable[[VariantStep], None]
) -> Iterator[Event]:
    """Run the step of the asset that the context names: `make` writes the table of each stale variant.

    If another variant has a table with the same fingerprint, it is copied: nothing is computed twice.

    Raises:
        dagster.Failure: with a readable reason; the variants before it are on record.
    """
    with asset_step(context, configuration) as progress:
        state, asset = configuration.state(), context.asset_key.to_user_string()
        stale = stale_partitions(context, state, asset)
        yield from known_partitions(context, state, asset, stale)
        for done, (name, wanted) in enumerate(stale.items(), start=1):
            place = name if len(stale) == 1 else f"{name} ({done} of {len(stale)})"
            step = VariantStep(
                asset=asset,
                variant=state.config.variant_set[name],
                state=state,
                wanted=wanted,
                progress=_shown(progress, place),
                context=context,
            )
            context.log.info(f"{asset}: {place}")
            twin = _twin(state, asset, wanted)
            if twin is None:
                with _named(name):
                    make(step)
            else:
                _take_over(step, *twin)
            assert step.made is not None, f"{asset}[{name}] was not made"
            yield materialisation(state, asset, name, step.made, step.metadata)
        yield from outputs(context, [asset])


@contextmanager
def _named(variant: str) -> Iterator[None]:
    """Prefix a failure with the variant's name."""
    try:
        yield
    except GateauError as error:
        error.args = (f"{variant}: {error}", *error.args[1:])
        raise


def _shown(progress: TimedProgress, place: str) -> TimedProgress:
    def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        progress(done, total, unit, f"{place}, {note}" if note else place, left=left)

    return report


def _twin(state: State, asset: str, wanted: Stamp) -> tuple[str, Stamp] | None:
    """Return another variant with the table that this one needs, and its stamp."""
    stamps = state.table_stamps((asset, name) for name in state.config.variant_set)
    for (_, name), stamp in stamps.items():
        if name is not None and stamp is not None and stamp.fingerprint == wanted.fingerprint:
            return name, stamp
    return None


def _take_over(step: VariantStep, name: str, stamp: Stamp) -> None:
    store = step.state.store
    step.wanted = replace(step.wanted, scorer=stamp.scorer)  # its rows are kept by it, like those of the other one
    rejected = store.read_rejected(step.asset, [name])
    step.write(store.read(step.asset, name), rejected, content=stamp.content)
    step.metadata["same_as"] = name
