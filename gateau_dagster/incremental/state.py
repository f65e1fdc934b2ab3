"""Gathers what the planner compares: the input's index, the models' digests and the stamps in the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gateau_dagster.config import Config
from gateau_dagster.data.index import InputIndex, cached_index
from gateau_dagster.data.shards import shard_keys
from gateau_dagster.data.short_chat import short_chat_signature
from gateau_dagster.errors import MissingUpstreamError
from gateau_dagster.incremental.model_digest import model_digest
from gateau_dagster.incremental.node import Node
from gateau_dagster.incremental.pipeline import Pipeline, pipeline_of
from gateau_dagster.incremental.plan import INPUT, Key, Plan, make_plan, recorded_versions, upstream_keys
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.documents import document_stamp, folder_stamp

REPORT_FILE = "report.html"
CHECKPOINT_FOLDER = "checkpoint"


@dataclass(frozen=True, kw_only=True)
class State:
    """A configuration and its store at one moment; what is read is read once."""

    config: Config
    progress: Progress = silent

    @cached_property
    def store(self) -> Store:
        """The store at `storage.root`."""
        return Store(self.config.located_root)

    @cached_property
    def shards(self) -> list[str]:
        """Partition keys."""
        return shard_keys(self.config.long_sft.shards)

    @cached_property
    def index(self) -> InputIndex:
        """The input's index; only files that changed since the last look are read."""
        from gateau_dagster.synthetic.inputs import ensure_demo_data

        ensure_demo_data(self.config)
        config = self.config
        return cached_index(config.located_long_sft, config.folder, config.work_folder / "cache", self.progress)

    @cached_property
    def model_digests(self) -> dict[str, str]:
        """What each configured model is."""
        return {name: model_digest(self.config, name) for name in self.config.models}

    @cached_property
    def pipeline(self) -> Pipeline:
        """The nodes that the configuration asks for."""
        from gateau_dagster.synthetic.inputs import ensure_demo_data

        ensure_demo_data(self.config)
        chat = self.config.located_short_chat
        signature = short_chat_signature(chat, self.config.folder, self.config.work_folder / "cache") if chat else None
        return pipeline_of(self.config, self.model_digests, signature)

    def node(self, asset: str) -> Node:
        """An asset's node."""
        return self.pipeline.by_name[asset]

    def shard_input(self, partition: str) -> str:
        """Content digest of the input samples that fall into a shard."""
        return self.index.shard_digest(int(partition))

    def stamp(self, asset: str, partition: str | None) -> Stamp | None:
        """The stamp of an output as it stands in the store."""
        if asset == "report":
            return document_stamp(self.store, REPORT_FILE)
        if asset == "checkpoint":
            return folder_stamp(self.store, CHECKPOINT_FOLDER)
        return self.store.stamp(asset, partition)

    def recorded(self) -> dict[Key, Stamp | None]:
        """The stamps of all outputs."""
        keys = list(self._keys())
        tables = [key for key in keys if key[0] not in {"report", "checkpoint"}]
        stamps = self.store.stamps(tables)
        return {key: stamps[key] if key in stamps else self.stamp(*key) for key in keys}

    def plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """What is out of date now."""
        inputs = {shard: self.shard_input(shard) for shard in self.shards}
        return make_plan(self.pipeline.nodes, self.shards, inputs, self.recorded() if recorded is None else recorded)

    def versions_now(self, asset: str, partition: str | None) -> dict[str, str]:
        """The upstream versions that an output computed now would be made from.

        Raises:
            MissingUpstreamError: an upstream output is not in the store yet.
        """
        node = self.node(asset)
        if node.partitioned and not node.upstream:
            assert partition is not None
            return {INPUT: self.shard_input(partition)}
        partitioned = self.pipeline.partitioned
        keys = [key for name in node.upstream for key in upstream_keys(node, name, partition, partitioned, self.shards)]
        stamps: dict[Key, Stamp] = {}
        for key in keys:
            stamp = self.stamp(*key)
            if stamp is None:
                raise MissingUpstreamError(asset, partition, key)
            stamps[key] = stamp
        return recorded_versions(node, partition, partitioned, self.shards, stamps)

    def wanted_stamp(self, asset: str, partition: str | None) -> Stamp:
        """The stamp of an output computed now, still without rows and content."""
        node, versions = self.node(asset), self.versions_now(asset, partition)
        return Stamp(fingerprint=node.fingerprint(versions), inputs=node.inputs(versions), scorer=node.scorer)

    def _keys(self) -> Iterator[Key]:
        for node in self.pipeline.nodes:
            for partition in self.shards if node.partitioned else [None]:
                yield node.asset, partition
