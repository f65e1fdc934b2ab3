"""Gathers what the planner compares: the input's index, the models' digests and the stamps in the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gateau_dagster.config import Config
from gateau_dagster.data.index import InputIndex, cached_index
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.data.short_chat import short_chat_signature
from gateau_dagster.errors import GateauError, MissingUpstreamError
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.pipeline.declarations import Pipeline, pipeline_of
from gateau_dagster.pipeline.made_models import MADE_FAMILIES, check_clusters
from gateau_dagster.pipeline.node import Node
from gateau_dagster.pipeline.plan import INPUT, Key, Plan, make_plan, recorded_versions, upstream_keys
from gateau_dagster.progress import Progress, silent
from gateau_dagster.selection.rules import check_data
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.documents import document_stamp, folder_stamp
from gateau_dagster.training.homologous_texts import check_homologous, text_signatures

REPORT_FILE = "report.html"
COMPARISON_FILE = "comparison.json"
_DOCUMENTS = {"report": REPORT_FILE, "comparison": COMPARISON_FILE}
CHECKPOINT_FOLDER = "checkpoint"


def _is_folder(asset: str) -> bool:
    """Whether an output is a model's folder, which goes by the asset's name."""
    return asset == CHECKPOINT_FOLDER or asset.split("/", maxsplit=1)[0] in MADE_FAMILIES


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
        from gateau_dagster.demo.inputs import ensure_demo_data

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
        from gateau_dagster.demo.inputs import ensure_demo_data

        ensure_demo_data(self.config)
        chat = self.config.located_short_chat
        signature = short_chat_signature(chat, self.config.folder, self.config.work_folder / "cache") if chat else None
        texts = text_signatures(self.config, self.config.work_folder / "cache" / "file-digests.json")
        return pipeline_of(self.config, self.model_digests, signature, texts)

    def node(self, asset: str) -> Node:
        """An asset's node."""
        return self.pipeline.by_name[asset]

    def shard_input(self, partition: str) -> str:
        """Content digest of the input samples that fall into a shard."""
        return self.index.shard_digest(int(partition))

    def stamp(self, asset: str, partition: str | None) -> Stamp | None:
        """The stamp of an output as it stands in the store."""
        if asset in _DOCUMENTS:
            return document_stamp(self.store, _DOCUMENTS[asset])
        if _is_folder(asset):
            return folder_stamp(self.store, asset)
        return self.store.stamp(asset, partition)

    def recorded(self) -> dict[Key, Stamp | None]:
        """The stamps of all outputs."""
        keys = list(self._keys())
        tables = [key for key in keys if key[0] not in _DOCUMENTS and not _is_folder(key[0])]
        stamps = self.store.stamps(tables)
        return {key: stamps[key] if key in stamps else self.stamp(*key) for key in keys}

    def plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """What is out of date now, of what the configuration asks for.

        Raises:
            GateauError: see `check_data`.
        """
        whole = self.whole_plan(recorded)
        return Plan(work=[work for work in whole.work if self.node(work.asset).wanted])

    def plan_until(self, asset: str | None) -> Plan:
        """`plan`, or what `asset` needs, whether the configuration asks for it or not.

        Raises:
            GateauError: there is no such asset; or see `check_data`.
        """
        if asset is None:
            return self.plan()
        try:
            return self.whole_plan().until(asset, self.pipeline.nodes)
        except ValueError as error:
            raise GateauError(str(error)) from error

    def whole_plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """What is out of date now of all assets, whether the configuration asks for them or not.

        Raises:
            GateauError: see `check_data`.
        """
        self.check_data()
        inputs = {shard: self.shard_input(shard) for shard in self.shards}
        return make_plan(self.pipeline.nodes, self.shards, inputs, self.recorded() if recorded is None else recorded)

    def check_data(self) -> None:
        """Whether data and models can give what the configuration asks for; else it would be found out after scoring.

        Raises:
            GateauError: the rule of selection cannot be met, there are fewer samples than clusters of them, a model
                cannot be made to read further, or cannot serve a method.
        """
        accepted = self.index.accepted
        check_data(dict(accepted["source"].value_counts().iter_rows()), self.config.selection)
        check_clusters(self.config, accepted.height)
        check_homologous(self.config)
        for method in chosen_methods(self.config).values():
            method.check_known_models(self.config)

    def row_scorer(self, asset: str) -> str | None:
        """What computes a row of a table as things stand; None while the model that does is still to be made."""
        node = self.node(asset)
        made = self.stamp(node.model, None) if node.model else None
        if not node.model:
            return node.scorer
        if made is None or self.whole_plan().of(node.model) is not None:
            return None
        return node.row_scorer({node.model: made.content})

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
        scorer = node.row_scorer(versions)
        return Stamp(fingerprint=node.fingerprint(versions), inputs=node.inputs(versions), scorer=scorer)

    def _keys(self) -> Iterator[Key]:
        for node in self.pipeline.nodes:
            for partition in self.shards if node.partitioned else [None]:
                yield node.asset, partition
