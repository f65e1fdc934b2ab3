"""Convert keys, names and partitions to Dagster's, and find the partitions that a step is asked for."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

# The switch for runs whose assets are recorded elsewhere, which Dagster exports nowhere.
from dagster._core.storage.tags import EXTERNALLY_MANAGED_ASSETS_TAG

from gateau_dagster.config import Config
from gateau_dagster.pipeline.pipeline import Pipeline


def asset_key(config: Config, asset: str) -> dg.AssetKey:
    """Return a name such as `perplexity/short` as a Dagster key, below the prefix of its pipeline."""
    return dg.AssetKey([*config.prefixes.keys, *asset.split("/")])


def declared_name(key: dg.AssetKey, prefix: Sequence[str]) -> str:
    """Return the declared name of an asset, such as `perplexity/short`, without the prefix of its pipeline."""
    return "/".join(key.path[len(prefix) :])


def own_name(config: Config, name: str) -> str:
    """Return the name of a job, step, sensor or resource, which is no other pipeline's in the code location."""
    return dg.AssetKey([*config.prefixes.keys, name]).to_python_identifier()


def own_options(config: Config, name: str, *resources: str) -> dict[str, Any]:
    """Return Dagster's options for the name of a job, step or sensor, and for the resources that it uses."""
    return {
        "name": own_name(config, name),
        "required_resource_keys": {own_name(config, resource) for resource in resources},
    }


def own_resource(context: Any, config: Config, name: str) -> Any:
    """Return a resource of the pipeline from the context of a step, sensor or schedule."""
    return getattr(context.resources, own_name(config, name))


def group_name(config: Config, group: str) -> str:
    """Return the name of a group of assets on the graph."""
    return "_".join(filter(None, [config.prefixes.groups, group]))


def partition_definitions(pipeline: Pipeline) -> Mapping[str, dg.StaticPartitionsDefinition]:
    """Return every partition set by its name."""
    return {name: dg.StaticPartitionsDefinition(keys) for name, keys in pipeline.partition_sets.items()}


def asked_partitions(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, partitions: Sequence[str]
) -> list[str]:
    """Return the partitions of this run: its partition or range of partitions, or all in a run without one."""
    if context.has_partition_key or context.has_partition_key_range:
        known = set(partitions)
        return [key for key in context.partition_keys if key in known]
    return [*partitions]


@contextmanager
def no_event_for_output(context: dg.AssetExecutionContext) -> Iterator[None]:
    """Keep Dagster from recording every shard a second time while a multi-shard step yields its output.

    The step has to yield an output, else Dagster skips the steps that depend on it. From that output Dagster would
    record one materialisation per shard, all with one data version, after the step has recorded each with its own. The
    tag is Dagster's own switch for runs whose assets are recorded elsewhere; a test covers this.
    """
    tags = context.run.tags
    assert isinstance(tags, dict), "Dagster keeps a run's tags in a dict"
    tags[EXTERNALLY_MANAGED_ASSETS_TAG] = "true"
    try:
        yield
    finally:
        del tags[EXTERNALLY_MANAGED_ASSETS_TAG]


# Of a table with very many partitions, Dagster records figures only: no rows, charts or checks. It stores a partition's
# record twice (in SQLite, for the run and for the asset). Each record has some 150 bytes around each figure, and 100
# around each previewed column. The checks name the failing partitions, and the report has the asset's totals.
FEW = 256
"""The largest number of partitions of which each is recorded in full."""

# The tag of the data version and `dagster/uri` contain these already.
_SAID_TWICE = {"fingerprint", "path"}
_PICTURES = (dg.TableMetadataValue, dg.MarkdownMetadataValue)
_ALWAYS = {"rejected_samples"}


def has_many(pipeline: Pipeline, asset: str) -> bool:
    """Return whether an asset has more partitions than are recorded in full."""
    return len(pipeline.partitions(asset)) > FEW


def figures_only(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a partition's metadata without rows and charts; its rejects and their reasons stay."""
    return {
        name: value
        for name, value in metadata.items()
        if name in _ALWAYS or not (name in _SAID_TWICE or isinstance(value, _PICTURES))
    }
