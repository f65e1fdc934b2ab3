"""Gather the assets of a configuration, their partitions, and their versions in Dagster."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.config.base import without_effect
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline import declarations
from gateau_dagster.pipeline.asset import SHARD, VARIANT, Asset
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.pipeline import Pipeline
from gateau_dagster.pipeline.recipes import recipes, weighs_responses
from gateau_dagster.pipeline.selection_reads import wants_presets
from gateau_dagster.readable import listed, nearest_name
from gateau_dagster.registry import distinct
from gateau_dagster.scoring.pair_tables import perplexity_asset

# By an asset or its group, the sections of the configuration that its `observe` may read; features name theirs.
_SECTIONS = {
    "short_chat_mix": ("short_chat",),
    "scoring": ("models", "scoring"),
    "training": ("models", "scoring", "training"),
}


def pipeline_of(config: Config) -> Pipeline:
    """Return the pipeline that a configuration describes; read no model and no data."""
    found = [asset for declare in declarations.DECLARED for asset in declare(config)]
    _check_reads(config, found)
    required = _required(config, found)
    shown = [asset.key for asset in found if asset.key in required]
    beside = [asset for feature in features() for asset in feature.beside(config)]
    beside += [asset for feature in features() for asset in feature.declare_last(config, shown)]
    return Pipeline(
        config=config,
        assets=[*found, *beside],
        required=required | {asset.key for asset in beside},
        partition_sets=partition_sets(config),
        sections=_sections(config),
        compares_the_pair=_compares_the_pair(config, [asset for asset in found if asset.key in required]),
    )


def _compares_the_pair(config: Config, required: Sequence[Asset]) -> bool:
    pair = {perplexity_asset("short"), perplexity_asset("long")}
    weighs = config.training.enabled and any(weighs_responses(each.config) for each in recipes(config))
    return config.has_pair and (weighs or any(pair <= {*asset.reads} for asset in required))


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
    of_features = [(each.name, each.keys(config)) for feature in features() for each in feature.partition_sets]
    own = {SHARD: shard_keys(config.long_sft.shards), VARIANT: [*config.variant_set]}
    return distinct([*own.items(), *(each for each in of_features if each[1])], "partition set")


def _required(config: Config, assets: Sequence[Asset]) -> frozenset[str]:
    """Return the keys of the assets that are kept up to date.

    With GATEAU's presets these are all assets, since a page about the presets shows every configured model. Otherwise
    they are the assets with `goal`, and what these read. The others can be requested by name.
    """
    if wants_presets(config):
        return frozenset(asset.key for asset in assets)
    whole = Pipeline(config=config, assets=assets)
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


def _sections(config: Config) -> Callable[[Asset], list[Any]]:
    """Return a function that returns an asset's sections, without places and without settings that change no result."""
    places = {"path", "revision"}
    without = {
        "short_chat": places,
        "models": dict.fromkeys(config.models, places),
        "scoring": without_effect(config.scoring, "rows"),
        "training": without_effect(config.training, "mix", "checkpoint"),
    }
    sections = {**_SECTIONS, **{key: each for feature in features() for key, each in feature.observed_sections.items()}}
    names = {name for found in sections.values() for name in found}
    dumped = cache(lambda: config.model_dump(mode="json", include=names, exclude=without))
    return lambda asset: [dumped()[name] for name in sections.get(asset.key, sections.get(asset.group, ()))]
