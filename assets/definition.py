"""What all assets share: group, kinds, table schema, code version, pool."""

from collections.abc import Callable, Collection
from typing import Any

import dagster as dg

from assets.event_log import asset_key
from assets.metadata import table_schema
from assets.partitions import shard_partitions
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.pipeline.code_versions import CODE_VERSIONS

GROUPS = {
    "raw_long_sft": "data",
    "short_chat_mix": "training",
    "perplexity": "scoring",
    "cam": "scoring",
    "pre_experience_mix": "scoring",
    "pre_experienced": "scoring",
    "homologous_mix": "scoring",
    "homologous_model": "scoring",
    "combined_scores": "selection",
    "method_scores": "selection",
    "comparison": "selection",
    "selected_subset": "selection",
    "training_mix": "training",
    "checkpoint": "training",
    "evaluation": "evaluation",
    "report": "evaluation",
}

# Assets of these families have a partition a shard; a method may bring more.
_SHARDED = {"raw_long_sft", "perplexity", "cam"}

Decorator = Callable[[Callable[..., Any]], Any]


def partitioned_asset(
    config: Config,
    asset: str,
    *,
    columns: tuple[tables.Column, ...],
    description: str,
    kinds: set[str],
    deps: list[str] | None = None,
    pool: str | None = None,
    code_version: str | None = None,
) -> Decorator:
    """Decorator of an asset with a partition a shard; one run of it may take many shards.

    `code_version`: of an asset that a method brings along.
    """
    return dg.asset(
        key=asset_key(asset),
        partitions_def=shard_partitions(config),
        backfill_policy=dg.BackfillPolicy.multi_run(config.execution.shards_per_run),
        deps=[asset_key(dep) for dep in deps or []],
        dagster_type=dg.Nothing,
        pool=pool,
        **_common(asset, columns, description, kinds, code_version),
    )


def partitioned_spec(
    asset: str, *, columns: tuple[tables.Column, ...], description: str, kinds: set[str], deps: list[str]
) -> dg.AssetSpec:
    """An asset with a partition a shard that shares its step with others; see `partitioned_assets`."""
    return dg.AssetSpec(
        asset_key(asset), deps=list(map(asset_key, deps)), **_common(asset, columns, description, kinds)
    )


def partitioned_assets(config: Config, name: str, *, specs: list[dg.AssetSpec], pool: str) -> Decorator:
    """Decorator of a step that makes several assets, or those of them that are asked for."""
    return dg.multi_asset(
        name=name,
        specs=specs,
        can_subset=True,
        partitions_def=shard_partitions(config),
        backfill_policy=dg.BackfillPolicy.multi_run(config.execution.shards_per_run),
        pool=pool,
    )


def global_asset(
    asset: str,
    *,
    columns: tuple[tables.Column, ...] = (),
    description: str,
    kinds: set[str],
    deps: list[str],
    pool: str | None = None,
    sharded: Collection[str] = (),
    code_version: str | None = None,
) -> Decorator:
    """Decorator of an asset over the whole data set; it waits for all shards of what it reads.

    `sharded`: assets that methods bring along and that have a partition a shard. `code_version`: see partitioned_asset.
    """
    return dg.asset(
        key=asset_key(asset),
        deps=[dg.AssetDep(asset_key(dep), partition_mapping=_all_shards(dep, sharded)) for dep in deps],
        pool=pool,
        **_common(asset, columns, description, kinds, code_version),
    )


def _all_shards(dep: str, sharded: Collection[str]) -> dg.PartitionMapping | None:
    partitioned = dep in sharded or dep.split("/", maxsplit=1)[0] in _SHARDED
    return dg.AllPartitionMapping() if partitioned else None


def _common(
    asset: str,
    columns: tuple[tables.Column, ...],
    description: str,
    kinds: set[str],
    code_version: str | None = None,
) -> dict[str, Any]:
    family = asset.split("/", maxsplit=1)[0]
    return {
        "group_name": GROUPS.get(family, "scoring"),
        "kinds": kinds,
        "description": description,
        "code_version": code_version or CODE_VERSIONS.get(asset, CODE_VERSIONS.get(family)),
        "metadata": {"dagster/column_schema": table_schema(columns)} if columns else {},
    }
