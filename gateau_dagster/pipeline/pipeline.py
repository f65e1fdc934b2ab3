"""Order the assets of a configuration topologically, and find which of them it requires."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.storage.stamp import fingerprint


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The assets of a configuration.

    assets: in topological order.
    required: the keys of those that the configuration needs.
    partition_sets: the keys of every partition set, by its name.
    sections: returns the sections of the configuration that an asset's `observe` may read, as JSON.
    compares_the_pair: whether any required asset compares theta_A with theta_B, or training weighs tokens by the pair.
    """

    config: Config
    assets: Sequence[Asset]
    required: frozenset[str] = frozenset()
    partition_sets: Mapping[str, list[str]] = field(default_factory=dict)
    sections: Callable[[Asset], list[Any]] = lambda _: []
    compares_the_pair: bool = False

    @cached_property
    def by_key(self) -> Mapping[str, Asset]:
        """Return the assets by key."""
        return {asset.key: asset for asset in self.assets}

    @property
    def left_out(self) -> list[str]:
        """Return the assets that the configuration does not need; they are made when they are named."""
        return [asset.key for asset in self.assets if asset.key not in self.required]

    @property
    def makes_cam(self) -> bool:
        """Return whether `cam` is required."""
        return self.config.has_pair and "cam" in self.required

    @property
    def scoring_models(self) -> frozenset[str]:
        """Return the models, by their names in `models`, that compute rows of required assets."""
        tables = (asset.table for asset in self.assets if asset.key in self.required)
        return frozenset(table.model for table in tables if table is not None)

    def partitions(self, key: str) -> list[str] | list[None]:
        """Return the partitions of an asset; None alone for a single output."""
        name = self.by_key[key].partitions
        return self.partition_sets[name] if name else [None]

    def ancestors(self, keys: Iterable[str]) -> set[str]:
        """Return these assets and everything upstream of them."""
        # The same walk as `plan.ancestors`, over keys that the caller knows to exist: no message is needed.
        found: set[str] = set()
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting.extend(self.by_key[key].reads)
        return found

    def descendants(self, keys: Iterable[str]) -> set[str]:
        """Return these assets and everything downstream of them."""
        found = set(keys)
        for asset in self.assets:
            # One pass suffices, since the assets are in topological order.
            if found & set(asset.reads):
                found.add(asset.key)
        return found

    @cached_property
    def code_versions(self) -> Mapping[str, str]:
        """Return the version of code and settings that Dagster shows for each asset, and compares with its records.

        It covers everything upstream, too: a changed setting shows at once wherever it may make something out of date.
        Models and files are left out: they are inputs, which have their own versions. No fingerprint contains this
        version, which is the same on every machine.
        """
        own: dict[str, list[Any]] = {}
        for asset in self.assets:
            parts = [asset, *asset.parts.values()]
            # If only models and files tell what counts of the configuration, the sections that it is taken from count
            # as a whole.
            sections = self.sections(asset) if any(each.observe is not None for each in parts) else []
            own[asset.key] = [asset.code_version, [each.settings for each in parts], sections]
        digests = {key: fingerprint({name: own[name] for name in self.ancestors([key])}) for key in own}
        return {asset.key: f"{asset.code_version}-{digests[asset.key][:12]}" for asset in self.assets}

    def shown_reads(self, key: str) -> list[str]:
        """Return the upstreams that the graph shows. A page reads nearly every asset, so the graph shows only those
        that are not upstream of another.
        """
        asset = self.by_key[key]
        if not asset.file:
            return [*asset.reads]
        before = {each: self.ancestors([each]) - {each} for each in asset.reads}
        return [each for each in asset.reads if not any(each in found for found in before.values())]

    def resolved(self, observed: Observed) -> list[Asset]:
        """Return the assets with all settings known, as the planner compares them with the store.

        Raises:
            GateauError: a file that training.deepspeed names cannot be read, or contradicts `training`.
        """
        return [asset.resolved(observed) for asset in self.assets]
