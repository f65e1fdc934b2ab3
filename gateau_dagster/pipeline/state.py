"""Gather what the planner compares: the input's index, the models' digests and the stamps in the store."""

# Why one object: what compares, checks and reports must see the same inputs. The index and all digests are read once
# and kept. A second reading could differ, and a plan would then mix two moments. Stamps are read whenever they are
# asked for, since a run writes them meanwhile.
#
# What it costs: a small read per output for the stamps, many at a time. Local files and models are known by size and
# time, so that a second command does not read them again. The hub is asked only where `asks_hub` is set, since each
# comparison is a request.

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.errors import GateauError, MissingUpstreamError
from gateau_dagster.models.model_digest import address_digest, model_digest
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.pipeline.feature import prepare_inputs
from gateau_dagster.pipeline.pipeline import Pipeline
from gateau_dagster.pipeline.plan import INPUT, Key, Partitions, Plan, ancestors, make_plan, recorded_versions
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.documents import document_stamp, folder_stamp
from gateau_dagster.storage.store import DamagedTableError

Read = TypeVar("Read")
_STAMP_READERS = 16
_PAGE_FILES = "page-files.json"  # in the cache: versions of the files that pages load


@dataclass(frozen=True, kw_only=True)
class State:
    """A configuration and its store at one moment; everything is read at most once.

    `observed.state_of` makes one.

    pipeline: the assets that the configuration describes.
    read_index: reads the input's index; only files that changed since the last call are read.
    observe: looks at everything outside configuration and store.
    check_model: raises GateauError for a configured model that cannot be loaded on this machine.
    asks_hub: whether data sets on the hub are compared with their records, by one request each. Others count as they
        are on record.
    """

    config: Config
    pipeline: Pipeline
    read_index: "Callable[[State], InputIndex]"
    observe: "Callable[[State], Observed]"
    check_model: "Callable[[State, str], None]"
    progress: Progress = silent
    asks_hub: bool = False

    @cached_property
    def store(self) -> Store:
        """Return the store at `storage.root`."""
        return Store(self.config.located_root)

    @cached_property
    def shards(self) -> list[str]:
        """Return the partition keys."""
        return shard_keys(self.config.long_sft.shards)

    def asset(self, key: str) -> Asset:
        """Return an asset's declaration."""
        return self.pipeline.by_key[key]

    def once(self, read: "Callable[[State], Read]") -> Read:
        """Return the result of a function for this state; call it the first time only."""
        # Features keep their own readings here. The class needs no attribute for each of them, and does not know them.
        if read not in self._reads:
            self._reads[read] = read(self)
        return self._reads[read]

    @cached_property
    def _reads(self) -> dict[Any, Any]:
        # A frozen dataclass has no place for a cache, but cached_property writes past its __setattr__.
        return {}

    @cached_property
    def index(self) -> InputIndex:
        """Return the input's index."""
        return self.read_index(self)

    @cached_property
    def model_digests(self) -> dict[str, str]:
        """Return the digest of each configured model."""
        models = self.config.models
        # A made model has no digest before it exists. Its base stands for it: what it is trained on counts as an
        # upstream.
        known = {name: self.digest(name) for name, model in models.items() if model.base is None}
        return {
            name: known[name] if model.base is None else f"made:{known[model.base]}" for name, model in models.items()
        }

    def digest(self, name: str) -> str:
        """Return the digest of a configured model that is not made here."""
        if name not in self._digests:
            # Features may have to make an input first, such as the models of the demo.
            prepare_inputs(self.config)
            self._digests[name] = model_digest(self.config, name)
        return self._digests[name]

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {}

    @cached_property
    def other_digests(self) -> dict[str, str]:
        """Return the digest of each model of `variants.also`, by its variant."""
        config = self.config
        return {
            name: address_digest(config, each.model, place=f"variants.also.{name}")
            for name, each in config.other_models.items()
        }

    @cached_property
    def observed(self) -> Observed:
        """Return the present state of everything outside configuration and store."""
        return self.observe(self)

    def variant_frame(self, variant: str) -> tuple[str, str]:
        """Return the changes by the chat template of a variant's model before an answer, see Observed.frames."""
        other = self.config.variant_set[variant].other
        own = self.config.origin(self.config.training.model)
        return self.observed.frame(own if other is None else f"variants.also.{variant}")

    @cached_property
    def _resolved(self) -> dict[str, Asset]:
        # A dict keeps the topological order.
        return {asset.key: asset for asset in self.pipeline.resolved(self.observed)}

    def resolved(self, key: str) -> Asset:
        """Return an asset with all settings known, as the planner compares it with the store."""
        return self._resolved[key]

    @cached_property
    def partitions(self) -> Partitions:
        """Return which partitions of the assets read which."""
        return Partitions.between(self.pipeline.assets, self.pipeline.partition_sets)

    def shard_input(self, partition: str) -> str:
        """Return the content digest of the input samples in a shard."""
        return self.index.shard_digest(int(partition))

    def stamp(self, key: str, partition: str | None) -> Stamp | None:
        """Return the stamp of an output in the store."""
        return self.stamps([(key, partition)])[key, partition]

    def stamps(self, keys: Iterable[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps of outputs in the store."""
        wanted = list(keys)
        tables = [key for key in wanted if not (self.asset(key[0]).file or self.asset(key[0]).folder)]
        found = self.table_stamps(tables)
        return {key: found[key] if key in found else self._file_stamp(self.asset(key[0])) for key in wanted}

    def _file_stamp(self, asset: Asset) -> Stamp | None:
        """Return the stamp of the report's page or the checkpoint's folder; None where another page is missing."""
        if asset.folder:
            return folder_stamp(self.store, asset.key)
        # The pages of a report refer to one another, so they are one output: a missing or older page makes all of them
        # stale.
        cache = self.config.work_folder / "cache" / _PAGE_FILES
        found, *others = (document_stamp(self.store, name, cache) for name in (asset.file, *asset.further_files))
        together = {None if each is None else each.fingerprint for each in others}
        return found if found is not None and together <= {found.fingerprint} else None

    def table_stamps(self, keys: Iterable[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps of tables; None where the table, or the model that it describes, is missing."""
        # Such a table says which model a variant is. It must not count without the folder of that model, which someone
        # may have removed.
        stamps = self.store.stamps(keys)
        with_models = {key: folder for key, stamp in stamps.items() if (folder := self.model_folder(key, stamp))}
        if not with_models:
            return stamps
        with ThreadPoolExecutor(_STAMP_READERS) as pool:
            models = pool.map(partial(folder_stamp, self.store), with_models.values())
        lost = {key for key, stamp in zip(with_models, models, strict=True) if stamp is None}
        return {key: None if key in lost else stamp for key, stamp in stamps.items()}

    def model_folder(self, key: Key, stamp: Stamp | None) -> str:
        """Return the folder of the model that a table describes, below the store; empty if it describes none."""
        part = self.asset(key[0]).parts.get(key[1] or "")
        return f"{part.folders}/{stamp.fingerprint}" if part is not None and part.folders and stamp is not None else ""

    def recorded(self) -> dict[Key, Stamp | None]:
        """Return the stamps of all outputs."""
        return self.stamps(key for asset in self.pipeline.assets for key in self.partitions.keys(asset.key))

    def read(self, asset: str, columns: list[str] | None = None, partition: str | None = None) -> pl.DataFrame:
        """Return a table, or one partition of it; rows of all its partitions together.

        Raises:
            GateauError: the table is missing or cannot be read.
        """
        partitions = self.pipeline.partitions(asset)
        # Without partitions, the table is a single file, not a folder of shards.
        if partitions == [None]:
            return self.store.read(asset, None, columns)
        chosen = partitions if partition is None else [partition]
        return self.store.read_all(asset, [each for each in chosen if each is not None], columns)

    def read_made(self, asset: str, columns: list[str]) -> dict[str, pl.DataFrame]:
        """Return these columns of an asset's tables by variant, as far as they are in the store."""
        stamps = self.store.stamps((asset, name) for name in self.config.variant_set)
        made = (str(name) for (_, name), stamp in stamps.items() if stamp is not None)
        return {name: self.store.read(asset, name, columns) for name in made}

    def read_rejected(self, asset: str, partition: str | None = None) -> pl.DataFrame:
        """Return the samples that a table rejected in one partition or in all, with the reasons."""
        partitions = self.pipeline.partitions(asset)
        chosen: Sequence[str | None] = partitions if partition is None or partitions == [None] else [partition]
        return self.store.read_rejected(asset, chosen)

    def plan(self) -> Plan:
        """Return the required outputs that are out of date now."""
        return self.plan_until(None)

    def plan_until(self, asset: str | None, whole: Plan | None = None) -> Plan:
        """Return `plan`, or what `asset` needs, whether the configuration requires it or not.

        Args:
            asset: key of an asset; None for all that are required.
            whole: the whole plan, if the caller has it.

        Raises:
            GateauError: there is no such asset.
        """
        if asset is not None:
            ancestors(asset, self.pipeline.assets)  # a name that does not exist is refused before anything is read
        whole = self.whole_plan() if whole is None else whole
        if asset is None:
            return Plan(work=[work for work in whole.work if work.asset in self.pipeline.required])
        made = self.config.made_inputs
        if asset not in self.pipeline.ancestors(made) and any(whole.of(each) is not None for each in made):
            return whole  # `asset` reads samples that are still to be made
        return whole.until(asset, [*self._resolved.values()])

    def plan_before_samples(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan | None:
        """Return the plan of the samples that `long_sft` reads and the pipeline makes, if they are out of date.

        All other work waits for them, because it may be different then. Otherwise it returns None.
        """
        if not self.config.made_inputs:
            return None
        # Which samples a shard holds is known only once they are made. So such a plan has two parts, and this is the
        # first.
        wanted = self.pipeline.ancestors(self.config.made_inputs)
        assets = [asset for asset in self._resolved.values() if asset.key in wanted]
        partitions = Partitions.between(assets, self.pipeline.partition_sets)
        found = recorded or self.stamps(key for asset in assets for key in partitions.keys(asset.key))
        return make_plan(assets, self.pipeline.partition_sets, {}, found) or None

    def whole_plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """Return the outdated outputs of all assets, whether the configuration requires them or not.

        It compares, and checks neither data nor models: `checks.checked_plan` does both. `recorded`: the stamps of all
        outputs, if the caller has them.
        """
        if (first := self.plan_before_samples(recorded)) is not None:
            return first
        inputs = {shard: self.shard_input(shard) for shard in self.shards}
        found = self.recorded() if recorded is None else recorded
        return make_plan([*self._resolved.values()], self.pipeline.partition_sets, inputs, found, self.on_hub[0])

    @cached_property
    def on_hub(self) -> tuple[dict[Key, str], list[str]]:
        """Return how each published data set differs from its record, if it does; and why others are not compared."""
        changes: dict[Key, str] = {}
        unknown = list[str]()
        # A hub that does not answer is no reason to publish again, nor to stop. It is reported as not compared.
        for asset in self.pipeline.assets if self.asks_hub else ():
            stamp = None if asset.elsewhere is None else self.stamp(asset.key, None)
            if asset.elsewhere is None or stamp is None:
                continue
            try:
                change = asset.elsewhere(stamp)
            except GateauError as error:
                unknown.append(f"{asset.key}: not compared with the hub. {error}")
                continue
            if change:
                changes[asset.key, None] = change
        return changes, unknown

    def row_scorer(self, asset: str) -> str | None:
        """Return the digest of what computes a row of a table now; None while its model is still to be made."""
        stamp = self.row_stamp(asset)
        return None if stamp is None else stamp.scorer

    def row_stamp(self, asset: str) -> Stamp | None:
        """Return scorer and inputs of the rows of a table, without versions of the data; None as for `row_scorer`."""
        table = self.resolved(asset)
        versions = dict.fromkeys(table.reads, "")
        if table.model:
            made = self.stamp(table.model, None)
            # The model is stale. By the digest of the old one, rows would be kept that the new one does not give.
            if made is None or self.whole_plan().of(table.model) is not None:
                return None
            versions[table.model] = made.content
        return Stamp(fingerprint="", inputs=table.made_from(versions), scorer=table.row_scorer(versions))

    def derivable(self, asset: str, shards: Iterable[str]) -> dict[str, pl.DataFrame]:
        """Return by shard the rows in the store that others can be derived from, with `sample_id` and `digest`.

        Only shards whose table differs in nothing but settings of `SampleTable.derivation` are in it.
        """
        table = self.asset(asset).table
        if table is None or (derivation := table.derivation) is None or (rows := self.row_stamp(asset)) is None:
            return {}
        stamps, found = self.stamps((asset, shard) for shard in shards), dict[str, pl.DataFrame]()
        for (_, shard), stamp in stamps.items():
            if shard is None or stamp is None or not derivation.fits(stamp, rows):
                continue
            with suppress(DamagedTableError):  # a run computes its rows
                names = {*self.store.columns(asset, shard)} & {"sample_id", "digest", derivation.marker}
                found[shard] = derivation.possible(self.store.read(asset, shard, sorted(names)))
        return found

    def versions_now(self, asset: str, partition: str | None) -> dict[str, str]:
        """Return the upstream versions that an output computed now would be made from.

        Raises:
            MissingUpstreamError: an upstream output is not in the store yet.
        """
        part = self.asset(asset).of_partition(partition)
        if part.reads_input:
            assert partition is not None
            return {INPUT: self.shard_input(partition)}
        keys = [key for name in part.reads for key in self.partitions.read(name, asset, partition)]
        found = self.stamps(keys)
        for key, stamp in found.items():
            if stamp is None:
                raise MissingUpstreamError(asset, partition, key)
        stamps = {key: stamp for key, stamp in found.items() if stamp is not None}
        return recorded_versions(part, partition, self.partitions, stamps)

    def outputs_read(self, upstream: str, asset: str, partition: str | None) -> list[Key]:
        """Return the outputs of an upstream that an output of `asset` reads."""
        return self.partitions.read(upstream, asset, partition)

    def wanted_stamp(self, asset: str, partition: str | None) -> Stamp:
        """Return the stamp of an output computed now, still without rows and content."""
        part, versions = self.resolved(asset).of_partition(partition), self.versions_now(asset, partition)
        scorer = part.row_scorer(versions)
        return Stamp(fingerprint=part.fingerprint(versions), inputs=part.made_from(versions), scorer=scorer)
