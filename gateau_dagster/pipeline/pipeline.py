"""Order the assets of a configuration topologically, and find which of them it requires."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline import declarations
from gateau_dagster.pipeline.asset import DOCUMENTS, SHARD, VARIANT, Asset, Observed
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.recipes import OPERATIONAL_TRAINING, recipes, weighs_responses
from gateau_dagster.pipeline.scoring_assets import OPERATIONAL_SCORING
from gateau_dagster.pipeline.selection_reads import wants_presets
from gateau_dagster.pipeline.synthesis_assets import document_keys
from gateau_dagster.readable import listed, nearest_name
from gateau_dagster.scoring.pair_tables import perplexity_asset
from gateau_dagster.storage.stamp import fingerprint

# By an asset or its group, the sections of the configuration that its `observe` may read.
_SECTIONS = {
    "short_chat_mix": ("short_chat",),
    "scoring": ("models", "scoring"),
    **dict.fromkeys(
        ("synthetic/passages", "synthetic/contexts", "synthetic/checks"),
        ("models", "scoring", "synthesis", "evaluation"),
    ),
    "training": ("models", "scoring", "training"),
    "evaluation": ("models", "scoring", "training", "evaluation"),
    "experiment": ("models", "scoring", "short_chat", "training", "evaluation", "variants"),
}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The assets of a configuration.

    assets: in topological order.
    required: the keys of those that the configuration needs.
    """

    config: Config
    assets: Sequence[Asset]
    required: frozenset[str]

    @cached_property
    def by_key(self) -> Mapping[str, Asset]:
        """Return the assets by key."""
        return {asset.key: asset for asset in self.assets}

    @property
    def left_out(self) -> list[str]:
        """Return the assets that the configuration does not need; they are made when they are named."""
        return [asset.key for asset in self.assets if asset.key not in self.required]

    @property
    def compares_the_pair(self) -> bool:
        """Return whether any required asset compares theta_A with theta_B, or training weighs tokens by the pair."""
        pair, report = {perplexity_asset("short"), perplexity_asset("long")}, self.assets[-1]
        required = [asset for asset in self.assets if asset.key in self.required and asset is not report]
        weighs = self.config.training.enabled and any(weighs_responses(each.config) for each in recipes(self.config))
        return self.config.has_pair and (weighs or any(pair <= {*asset.reads} for asset in required))

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
        return partition_sets(self.config)[name] if name else [None]

    def ancestors(self, keys: Iterable[str]) -> set[str]:
        """Return these assets and everything upstream of them."""
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
        own = {asset.key: self._own_version(asset) for asset in self.assets}
        digests = {key: fingerprint({name: own[name] for name in self.ancestors([key])}) for key in own}
        return {asset.key: f"{asset.code_version}-{digests[asset.key][:12]}" for asset in self.assets}

    def _own_version(self, asset: Asset) -> list[Any]:
        """Return the asset's code version and settings. If only models and files tell what counts of the configuration,
        the sections that it is taken from count as a whole.
        """
        parts = [asset, *asset.parts.values()]
        names = _SECTIONS.get(asset.key, _SECTIONS.get(asset.group, ()))
        sections = [self._sections[name] for name in names if any(each.observe is not None for each in parts)]
        return [asset.code_version, [each.settings for each in parts], sections]

    @cached_property
    def _sections(self) -> Mapping[str, Any]:
        """Return the sections of _SECTIONS without places, and without settings that change no result."""
        names = {name for found in _SECTIONS.values() for name in found}
        places, operational = {"path", "revision"}, {"scoring": OPERATIONAL_SCORING, "training": OPERATIONAL_TRAINING}
        without = {**operational, "short_chat": places, "models": dict.fromkeys(self.config.models, places)}
        return self.config.model_dump(mode="json", include=names, exclude=without)

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


def pipeline_of(config: Config) -> Pipeline:
    """Return the pipeline that a configuration describes; read no model and no data."""
    found = [asset for declare in declarations.DECLARED for asset in declare(config)]
    found += [asset for feature in features() for asset in feature.declare(config)]
    _check_reads(config, found)
    required = _required(config, found)
    report = declarations.report(config, [asset.key for asset in found if asset.key in required])
    beside = [*(asset for feature in features() for asset in feature.beside(config)), report]
    return Pipeline(config=config, assets=[*found, *beside], required=required | {asset.key for asset in beside})


def _check_reads(config: Config, assets: Sequence[Asset]) -> None:
    """Check that every method reads tables and columns that exist before its scores, and that no two assets share a
    name.

    Raises:
        GateauError: a plug-in does not.
    """
    places: dict[str, int] = {}
    for number, asset in enumerate(assets):
        if places.setdefault(asset.key, number) != number:
            raise GateauError(
                "plugins.name", f"selection.plugins: two tables are named {asset.key}: give the plug-in's another name"
            )
    for method in chosen_methods(config).values():
        for asset, columns in method.reads().items():
            place = f"method {method.name} reads {asset}"
            if places.get(asset, len(assets)) >= places.get(method.asset, len(assets)):
                earlier = [key for key, number in places.items() if number < places.get(method.asset, len(assets))]
                raise GateauError(
                    "plugins.reads",
                    f"selection.plugins: {place}, which is not made before its scores; {nearest_name(asset, earlier)}. "
                    "Read another table; the scores of a method exist for those named after it in selection.compare",
                )
            read = assets[places[asset]]
            lacking = [name for name in columns if read.columns and name not in {each.name for each in read.columns}]
            if lacking:
                names = [column.name for column in read.columns]
                raise GateauError(
                    "plugins.reads",
                    f"selection.plugins: {place}, which lacks column {lacking[0]!a}; {nearest_name(lacking[0], names)}",
                )
            if method.per_sample and not read.partitions:
                raise GateauError(
                    "plugins.reads",
                    f"selection.plugins: {place}, which is no table by shard, but scores each shard alone: set "
                    "per_sample = False",
                )


def partition_sets(config: Config) -> Mapping[str, list[str]]:
    """Return the keys of every partition set, by its name."""
    documents = {} if config.synthesis is None else {DOCUMENTS: document_keys(config)}
    return {SHARD: shard_keys(config.long_sft.shards), VARIANT: [*config.variant_set], **documents}


def _required(config: Config, assets: Sequence[Asset]) -> frozenset[str]:
    """Return the keys of the assets that are kept up to date.

    With GATEAU's presets these are all assets, since a page about the presets shows every configured model. Otherwise
    they are the assets with `goal`, and what these read. The others can be requested by name.
    """
    if wants_presets(config):
        return frozenset(asset.key for asset in assets)
    whole = Pipeline(config=config, assets=assets, required=frozenset())
    return frozenset(whole.ancestors(asset.key for asset in assets if asset.goal))


def left_out_sentence(config: Config, left_out: Iterable[str]) -> str:
    """Return a line that explains why tables are missing; empty if every table is required."""
    names = list(left_out)
    if not names:
        return ""
    methods = list(chosen_methods(config))
    verb = "does not need" if len(methods) == 1 else "do not need"
    return (
        f"Left out, since {listed(methods)} {verb} {'it' if len(names) == 1 else 'them'}: {', '.join(names)}. "
        "Request one with --until, or name a method that reads it in selection.compare."
    )
