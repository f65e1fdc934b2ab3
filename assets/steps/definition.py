"""Define Dagster assets from the declarations, and the inputs as observable source assets."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg

from gateau_dagster import assets
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.assets.steps.metadata import table_schema
from gateau_dagster.assets.steps.observations import input_changes
from gateau_dagster.assets.steps.partitions import (
    asset_key,
    group_name,
    own_name,
    own_options,
    own_resource,
    partition_definitions,
)
from gateau_dagster.assets.steps.step import MARK, asset_step
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import VARIANT, Asset
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.inputs import Input, inputs_of
from gateau_dagster.pipeline.pipeline import Pipeline
from gateau_dagster.readable import plural
from gateau_dagster.registry import distinct, feature_modules

_ROOT = Path(__file__).resolve().parents[2]  # the checkout: gateau_dagster/assets is a link to assets


def catalogued(config: Config, asset: Asset, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the catalogue options of the asset's definition. `function`: makes the asset."""
    catalogue = config.execution.catalogue
    hours = catalogue.hours_of(asset.key)
    policy = None if hours is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=hours))
    columns = {"dagster/column_schema": table_schema(asset.columns)} if asset.columns else {}
    return {
        "owners": catalogue.owners_of(asset.key),
        "tags": dict(catalogue.tags),
        "metadata": {**columns, "dagster/code_references": _code(function, catalogue.code)},
        **({} if policy is None else {"freshness_policy": policy}),
    }


def _code(function: Callable[..., Any], url: str | None) -> dg.CodeReferencesMetadataValue:
    """Return the location of the function: a local file, or a URL in a repository."""
    file, line = Path(inspect.getsourcefile(function) or "").resolve(), inspect.getsourcelines(function)[1]
    place = file.relative_to(_ROOT).as_posix() if file.is_relative_to(_ROOT) else file.name
    if url is not None:
        return dg.CodeReferencesMetadataValue(
            code_references=[dg.UrlCodeReference(url=f"{url.rstrip('/')}/{place}#L{line}", label=place)]
        )
    return dg.CodeReferencesMetadataValue(
        code_references=[dg.LocalFileCodeReference(file_path=str(file), line_number=line, label=place)]
    )


Functions: TypeAlias = Mapping[str, Callable[..., None]]


def asset_functions() -> Functions:
    """Return all marked functions by name, from the modules directly in `assets` and from those of features."""
    names = [each.name for each in pkgutil.iter_modules(assets.__path__) if not each.ispkg]
    own = (importlib.import_module(f"{assets.__name__}.{name}") for name in names)
    modules = [*own, *feature_modules("assets")]
    marked = (pair for module in modules for pair in vars(module).items() if getattr(pair[1], MARK, False))
    return distinct(marked, "function of an asset")


def asset_definitions(config: Config) -> list[dg.AssetsDefinition]:
    """Define Dagster's assets of a configuration, in topological order; one step may make several."""
    pipeline = pipeline_of(config)
    making = _Making(config, pipeline, asset_functions(), partition_definitions(pipeline))
    return [making.definition(step) for step in _steps(pipeline.assets)]


def _steps(declared: Sequence[Asset]) -> Iterator[list[Asset]]:
    """Yield the assets of each step, at the position of its first asset."""
    done: set[str] = set()
    for asset in declared:
        if asset.step and asset.step in done:
            continue
        done.add(asset.step)
        yield [each for each in declared if asset.step and each.step == asset.step] or [asset]


def computing(config: Config, function: Callable[..., None]) -> tuple[Callable[..., Any], set[str]]:
    """Return the function that Dagster calls to run a marked function's step, and the resources that it needs."""
    _, *names = inspect.signature(function).parameters

    def compute(context: dg.AssetExecutionContext) -> Any:
        with asset_step(context, own_resource(context, config, "configuration")) as step:
            function(step, **{name: own_resource(context, config, name) for name in names})
            yield from step.results()

    return compute, {own_name(config, name) for name in ["configuration", *names]}


@dataclass(frozen=True)
class _Making:
    """Makes the definitions of a pipeline."""

    config: Config
    pipeline: Pipeline
    functions: Functions
    partitions: Mapping[str, dg.StaticPartitionsDefinition]

    def definition(self, made: Sequence[Asset]) -> dg.AssetsDefinition:
        """Define the assets that one step makes."""
        first = made[0]
        compute, resources = computing(self.config, self.functions[first.maker])
        options: dict[str, Any] = {"pool": first.pool or None, "required_resource_keys": resources}
        if first.partitions:
            options["partitions_def"] = self.partitions[first.partitions]
            options["backfill_policy"] = dg.BackfillPolicy.multi_run(self.config.execution.shards_per_run)
        if len(made) == 1 and not first.step:
            options |= {"key": asset_key(self.config, first.key), "deps": self._deps(first), "dagster_type": dg.Nothing}
            return dg.asset(**options, **self._common(first))(compute)
        keys = [asset_key(self.config, each.key) for each in made]
        specs = [
            dg.AssetSpec(key, deps=self._deps(each), **self._common(each)) for key, each in zip(keys, made, strict=True)
        ]
        return dg.multi_asset(name=own_name(self.config, first.step), specs=specs, can_subset=True, **options)(compute)

    def _deps(self, asset: Asset) -> list[dg.AssetDep]:
        """Return the dependencies; an asset with other partitions than its upstream waits for those that it reads."""
        found = [dg.AssetDep(asset_key(self.config, key)) for key in asset.inputs]
        for key in self.pipeline.shown_reads(asset.key):
            partitions = self.pipeline.by_key[key].partitions
            mapping = dg.AllPartitionMapping() if partitions and partitions != asset.partitions else None
            if partitions == VARIANT and asset.variant:
                mapping = dg.SpecificPartitionsPartitionMapping([asset.variant])
            found.append(dg.AssetDep(asset_key(self.config, key), partition_mapping=mapping))
        return found

    def _common(self, asset: Asset) -> dict[str, Any]:
        return {
            "group_name": group_name(self.config, asset.shown_group),
            "kinds": set(asset.kinds),
            "description": asset.description or asset.summary,
            "code_version": self.pipeline.code_versions[asset.key],
            **catalogued(self.config, asset, self.functions[asset.maker]),
        }


def input_definitions(config: Config) -> list[dg.AssetsDefinition]:
    """Define an observable source asset per input of raw_long_sft, models and mixes."""
    partitions = partition_definitions(pipeline_of(config))
    return [_definition(config, each, partitions.get(each.partitions)) for each in inputs_of(config)]


def _definition(config: Config, given: Input, partitions: dg.PartitionsDefinition | None) -> dg.AssetsDefinition:
    spec = dg.AssetSpec(
        asset_key(config, given.key),
        description=f"{given.summary} ({given.path}). The sensor `inputs` and every run check it.",
        group_name=group_name(config, "input"),
        kinds=set(given.kinds),
        owners=config.execution.catalogue.owners_of(given.key),
        tags=dict(config.execution.catalogue.tags),
        metadata={"path": given.path},
        partitions_def=partitions,
    )

    @dg.multi_observable_source_asset(
        **own_options(config, f"look_at_{given.key.replace('/', '_')}", "configuration"),
        specs=[spec],
        can_subset=True,
    )
    def look(context: dg.AssetExecutionContext) -> Iterator[dg.AssetObservation | dg.Output[None]]:
        with readable_failure(context):
            state = own_resource(context, config, "configuration").state()
            found = [*input_changes(context.instance, state, given)]
        context.log.info(f"{given.key}: {plural(len(found), 'new version')}")
        yield from found

    return look
