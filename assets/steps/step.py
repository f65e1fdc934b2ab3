"""Run one Dagster step: hand out its stale outputs in turn, and record each when it is made."""

# Why a step looks again what is stale: Dagster asks for a range of shards, or for all. The run may also continue one
# that was killed. A step that computed whatever it is asked for would compute current shards again.
#
# Why each partition is recorded as it is made: Dagster records the outputs of a step when the step ends. After a kill
# at the last of a hundred shards, none would be on record.

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import dagster as dg
import polars as pl
from dagster import DagsterExecutionInterruptedError, DagsterInstance, DagsterRunStatus

from gateau_dagster.assets.steps.dead_runs import has_own_process, tag_with_process
from gateau_dagster.assets.steps.event_log import PLAN_TAG, recorded_tags, version_tags, with_events
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.assets.steps.metadata import (
    DATA_VERSION_TAG,
    first_histogram,
    page_metadata,
    preview,
    table_metadata,
)
from gateau_dagster.assets.steps.partitions import (
    asked_partitions,
    asset_key,
    figures_only,
    has_many,
    no_event_for_output,
)
from gateau_dagster.assets.steps.progress import selected_assets, shown_progress
from gateau_dagster.config import Config
from gateau_dagster.config.variants import Variant
from gateau_dagster.errors import GateauError
from gateau_dagster.execution.interruption import step_ends_in_order
from gateau_dagster.execution.row_checkpoints import save_all_rows
from gateau_dagster.execution.shard_tables import ShardResult, rejected_frame
from gateau_dagster.pipeline.asset import VARIANT
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import TimedProgress
from gateau_dagster.resources.lease import store_lease
from gateau_dagster.storage import Stamp

MARK = "makes_asset"
Function = TypeVar("Function", bound=Callable[..., None])


def makes_asset(function: Function) -> Function:
    """Mark a function as the maker of every asset whose declaration has its name as `maker`.

    Its first parameter is the `Step`; the others are the resources that it needs, by their keys in `definitions.py`.
    """
    setattr(function, MARK, True)
    return function


_KEPT = {"up_to_date": "kept: no change"}


@dataclass(kw_only=True)
class Output:
    """A stale output of a step: a partition, or an asset without any.

    partition: None for an asset without any. wanted: the stamp that it will get. made: the stamp that it got.
    progress: shows the variant, if it is one. metadata: of its record in Dagster.
    """

    context: dg.AssetExecutionContext
    state: State
    asset: str
    partition: str | None
    wanted: Stamp
    progress: TimedProgress
    metadata: dict[str, Any] = field(default_factory=dict)
    made: Stamp | None = None
    counts: str = ""

    @property
    def name(self) -> str:
        """Return the part of the asset's key behind the slash: a benchmark, method or model."""
        return self.asset.split("/", maxsplit=1)[1]

    @property
    def variant(self) -> Variant:
        """Return the variant that the partition belongs to."""
        assert self.partition is not None
        return self.state.config.variant_set[self.partition]

    def warn(self, name: str, warning: str) -> None:
        """Put a warning into the metadata, under this name, and into the log; nothing for an empty text."""
        if warning:
            self.metadata[name] = warning
            self.context.log.warning(f"{self.asset} {self.partition or ''}: {warning}")

    def write(
        self,
        table: pl.DataFrame,
        rejected: pl.DataFrame | None = None,
        *,
        content: str = "",
        absent: Iterable[str] = (),
        given: int | None = None,
        rule: str = "",
        computed: int | None = None,
    ) -> None:
        """Write the table.

        Args:
            table: the rows.
            rejected: samples without a row, with the reasons; None leaves those of an earlier table.
            content: digest of what counts of the table downstream; of the whole table if empty.
            absent: ids of missing rows that another try may give; see Stamp.without.
            given, rule: see Stamp.
            computed: samples of a shard; default: the rows.
        """
        state = self.state
        stamp = self.wanted.without(absent, state.asset(self.asset).means)
        stamp = replace(stamp, content=content or stamp.content, given=given, rule=rule)
        stamp = state.store.write(table, self.asset, self.partition, stamp, rejected)
        if state.asset(self.asset).partitions not in {"", VARIANT}:
            rejected = rejected_frame([]) if rejected is None else rejected
            computed = table.height if computed is None else computed
            self.finish_shard(ShardResult(table=table, rejected=rejected, computed=computed, reused=0, stamp=stamp))
            return
        address = state.store.address(self.asset, self.partition)
        self.finish(stamp, **table_metadata(address, stamp, rejected, whole=self.partition is None), **preview(table))

    def finish_shard(self, result: ShardResult, **metadata: Any) -> None:
        """Note that a shard's table is in the store, with its kept and its computed rows."""
        few = not has_many(self.state.pipeline, self.asset)
        pictures = preview(result.table) | first_histogram(result.table) if few else {}
        counted = f"{result.computed} samples computed, {result.reused} kept, {result.rejected.height} rejected"
        self.counts = counted if few else ""
        counts = {"samples_computed": result.computed, "samples_kept": result.reused}
        found = table_metadata("", result.stamp, result.rejected, whole=False)
        self.finish(result.stamp, **found, **pictures, **counts, **metadata)

    def finish(self, stamp: Stamp, **metadata: Any) -> None:
        """Note that the output is in the store, with this stamp."""
        self.made = stamp
        self.metadata |= metadata

    def copy(self, twin: str, stamp: Stamp) -> None:
        """Copy the table of another partition, of this stamp."""
        self.wanted = replace(self.wanted, scorer=stamp.scorer)  # its rows are kept by it, like those of the other one
        store = self.state.store
        self.write(store.read(self.asset, twin), store.read_rejected(self.asset, [twin]), content=stamp.content)
        self.metadata["same_as"] = twin


class Configuration(Protocol):
    """The resource that a step reads its configuration and state from."""

    config_file: str
    key_prefix: list[str]

    @property
    def config(self) -> Config:
        """Return the validated configuration; raise GateauError for a wrong one."""
        ...

    def in_environment(self) -> AbstractContextManager[None]:
        """Set the configuration file in the environment."""
        ...

    def state(self, progress: TimedProgress, assets: Sequence[str]) -> State:
        """Return the store and the input as they are now, for making these assets."""
        ...


class Step:
    """A step at work.

    assets: those that it is asked for. stale: their outputs that are out of date.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, configuration: Configuration, progress: TimedProgress
    ) -> None:
        self.context, self.log, self.progress = context, context.log, progress
        self.assets = selected_assets(context, configuration.key_prefix)
        self.state = configuration.state(progress, self.assets)
        self._kept: Stamp | None = None
        self._at: Output | None = None
        self._recorded: Counter[str] = Counter()
        self.stale = [output for asset in self.assets for output in self._stale(asset)]

    def in_turn(self) -> Iterator[Output]:
        """Yield each stale output, and record it when the next one is asked for.

        If another variant has a table with the same fingerprint, it is copied: nothing is computed twice.
        """
        for output in self.stale:
            self._at = output
            if self.state.asset(output.asset).partitions == VARIANT:
                output.progress = _shown(self.progress, self._place(output))
                self.log.info(f"{output.asset}: {self._place(output)}")
                if (twin := self._twin(output)) is not None:
                    output.copy(*twin)
            if output.made is None:
                yield output
            self.record(output)

    def record(self, output: Output) -> None:
        """Record a partition that is made: with its own data version, so that it counts if the run dies later."""
        stamp, asset, partition = output.made, output.asset, output.partition
        assert stamp is not None, f"{asset}[{partition}] was not made"
        self._recorded[asset] += 1
        if partition is None:
            return
        if output.counts:  # of very many partitions the progress tells enough
            stale = sum(each.asset == asset for each in self.stale)
            self.log.info(f"{asset}, shard {partition} ({self._recorded[asset]} of {stale}): {output.counts}")
        self._log_materialisation(asset, partition, stamp, output.metadata)

    def results(self) -> Iterator[dg.MaterializeResult | dg.Output]:
        """Yield the events that Dagster expects of each asset. The partitions are on record already."""
        if any(self.state.asset(asset).partitions for asset in self.assets):
            with no_event_for_output(self.context):
                for asset in self.assets:
                    yield dg.Output(None, self.context.output_for_asset_key(asset_key(self.state.config, asset)))
            return
        made = next(iter(self.stale), None)
        stamp, metadata = (self._kept, _KEPT) if made is None else (made.made, made.metadata)
        assert stamp is not None, f"{self.assets} was not made"
        metadata = page_metadata({"fingerprint": stamp.fingerprint, **metadata})
        tags = self._tags(self.assets[0], None, stamp)
        yield dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(tags[DATA_VERSION_TAG]), tags=tags)

    @contextmanager
    def naming_the_variant(self) -> Iterator[None]:
        """Prefix a failure with the name of the variant at work."""
        try:
            yield
        except GateauError as error:
            if self._at is not None and self.state.asset(self._at.asset).partitions == VARIANT:
                error.args = (error.code, f"{self._at.partition}: {error}")
            raise

    def _stale(self, asset: str) -> Iterator[Output]:
        """Yield the stale outputs of an asset among those that the run asks for; record the others.

        A backfill needs their records again, since it takes a shard without one as failed. `refresh` requests a range,
        and means only the stale shards in it.
        """
        state, declared, keys = self.state, self.state.asset(asset), self.state.pipeline.partitions(asset)
        parts = [key for key in keys if key is not None]
        asked = asked_partitions(self.context, parts) if declared.partitions else [None]
        wanted = {part: state.wanted_stamp(asset, part) for part in asked}
        found = state.stamps((asset, part) for part in asked)
        current = {
            part: stamp
            for (_, part), stamp in found.items()
            if stamp is not None
            and declared.is_current(stamp, wanted[part].fingerprint)
            and (asset, part) not in state.on_hub[0]
        }
        if None in current:
            self._kept = current.pop(None)
            self.log.info(f"{asset} is up to date and is kept")
            return
        if current:
            names = [str(part) for part in current]
            what = f"{len(names)} {declared.partitions}s"
            self.log.info(f"{what} are up to date and are kept: {', '.join(names[:20])}")
            known = recorded_tags(self.context.instance, state, asset) if PLAN_TAG in self.context.run.tags else {}
            for part, stamp in current.items():
                if known.get(part, {}).get(DATA_VERSION_TAG) != stamp.fingerprint:
                    self._log_materialisation(asset, str(part), stamp, _KEPT)
        for part, stamp in wanted.items():
            if part not in current:
                yield Output(
                    context=self.context, state=state, asset=asset, partition=part, wanted=stamp, progress=self.progress
                )

    def _log_materialisation(self, asset: str, partition: str, stamp: Stamp, metadata: dict[str, Any]) -> None:
        address = self.state.store.address(asset, partition)
        whole = page_metadata(metadata | table_metadata(address, stamp, whole=False))
        event = dg.AssetMaterialization(
            asset_key(self.state.config, asset),
            partition=partition,
            metadata=figures_only(whole) if has_many(self.state.pipeline, asset) else whole,
            tags=self._tags(asset, partition, stamp),
        )
        self.context.log_event(event)

    def _tags(self, asset: str, partition: str | None, stamp: Stamp) -> dict[str, str]:
        return with_events(self.context.instance, version_tags(self.state, asset, partition, stamp))

    def _place(self, output: Output) -> str:
        number, count = self.stale.index(output) + 1, len(self.stale)
        return str(output.partition) if count == 1 else f"{output.partition} ({number} of {count})"

    def _twin(self, output: Output) -> tuple[str, Stamp] | None:
        """Return another variant with the table that this one needs, and its stamp."""
        # Variants may differ in a key that does not affect this table, such as the seed of the training in the choice
        # of samples.
        stamps = self.state.table_stamps((output.asset, name) for name in self.state.config.variant_set)
        for (_, name), stamp in stamps.items():
            if name is not None and stamp is not None and stamp.fingerprint == output.wanted.fingerprint:
                return name, stamp
        return None


def _shown(progress: TimedProgress, place: str) -> TimedProgress:
    def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        progress(done, total, unit, f"{place}, {note}" if note else place, left=left)

    return report


@contextmanager
def asset_step(context: dg.AssetExecutionContext, configuration: Configuration) -> Iterator[Step]:
    """Surround the work of a step: the process on record, readable failures, retries, the store's lease, progress.

    Raises:
        dagster.RetryRequested, dagster.Failure: for the reasons of `readable_failure`; the outputs before are on
            record.
    """
    tag_with_process(context)
    title = " + ".join(selected_assets(context, configuration.key_prefix))  # perplexity/long + cam
    with ExitStack() as around:
        around.enter_context(configuration.in_environment())
        if has_own_process(context):  # keep what it has computed when it is told to end
            around.enter_context(step_ends_in_order(save_all_rows))
        with readable_failure(context, title=title):
            config = configuration.config
        around.enter_context(readable_failure(context, config.execution.retries, title=title))
        lease = store_lease(config, configuration.config_file, exclusive=False, say=context.log.info)
        around.enter_context(lease)
        progress = around.enter_context(shown_progress(context, config, title))
        heed_termination(context)
        step = Step(context, configuration, heeding(context, progress))
        around.enter_context(step.naming_the_variant())
        yield step


_SECONDS_BETWEEN_LOOKS = 5.0


def is_to_end(instance: DagsterInstance, run_id: str) -> bool:
    """Return whether somebody has asked a run to end; False if the records are out of reach until the next look."""
    try:
        run = instance.get_run_by_id(run_id)
    except Exception:  # each database has its own; work that needs the records reports it
        return False
    return run is not None and run.status is DagsterRunStatus.CANCELING


def heed_termination(context: dg.AssetExecutionContext) -> None:
    """Raise DagsterExecutionInterruptedError in a run that somebody has asked to end.

    Dagster itself raises it once, and a running import may swallow it.
    """
    if is_to_end(context.instance, context.run_id):
        raise DagsterExecutionInterruptedError


def heeding(context: dg.AssetExecutionContext, progress: TimedProgress) -> TimedProgress:
    """Return a progress callback that also looks every few seconds whether the run was asked to end."""
    looked = time.monotonic()

    def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        nonlocal looked
        progress(done, total, unit, note, left=left)
        in_main_thread = threading.current_thread() is threading.main_thread()  # another thread would end alone
        if in_main_thread and time.monotonic() - looked >= _SECONDS_BETWEEN_LOOKS:
            looked = time.monotonic()
            heed_termination(context)

    return report
