"""Define the asset checks: is each table valid, and is it up to date?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import dagster as dg
from dagster import AssetCheckEvaluation, AssetRecordsFilter, DagsterInstance

# An AssetCheckResult can be of one partition only, and names no table: these evaluations are of the whole as well.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from gateau_dagster.assets.runs.checked import DESCRIPTIONS, check_result, checked, is_by_partition, is_partitioned
from gateau_dagster.assets.steps.dead_runs import tag_with_process
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.assets.steps.partitions import (
    asked_partitions,
    asset_key,
    declared_name,
    own_options,
    own_resource,
    partition_definitions,
)
from gateau_dagster.config import Config
from gateau_dagster.pipeline.asset import UP_TO_DATE, Asset
from gateau_dagster.pipeline.pipeline import Pipeline, pipeline_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural

_MOST_NAMED = 20
Target: TypeAlias = Callable[[str | None], AssetCheckEvaluationTargetMaterializationData | None]


def checks_of(asset: Asset) -> list[str]:
    """Return the names of an asset's checks."""
    return [UP_TO_DATE, *asset.checks]


def asset_checks(config: Config) -> list[dg.AssetChecksDefinition]:
    """Define the checks of all assets; one step per asset, so that its table is read once."""
    pipeline = pipeline_of(config)
    return [_checks(pipeline, asset) for asset in pipeline.assets]


def _checks(pipeline: Pipeline, asset: Asset) -> dg.AssetChecksDefinition:
    names, partitions = checks_of(asset), partition_definitions(pipeline.config)
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=asset_key(pipeline.config, asset.key),
            description=DESCRIPTIONS[name],
            partitions_def=partitions[asset.partitions] if is_partitioned(pipeline, asset, name) else None,
        )
        for name in names
    ]

    @dg.multi_asset_check(
        **own_options(pipeline.config, f"check_{asset.key.replace('/', '_')}", "configuration"),
        specs=specs,
        can_subset=True,
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[AssetCheckEvaluation | dg.Output[None]]:
        tag_with_process(context)
        configuration = own_resource(context, pipeline.config, "configuration")
        asked = {check.name for check in context.selected_asset_check_keys}
        with readable_failure(context):
            retries = configuration.config.execution.retries
        with readable_failure(context, retries):
            state = configuration.state()
            # Everything is computed before the first yield: a retried step must not yield a result twice.
            target = cache(partial(latest_record, context.instance, specs[0].asset_key))
            results = [(spec, _found(context, state, spec, target)) for spec in specs if spec.name in asked]
        for spec, found in results:
            yield dg.Output(None, spec.get_python_identifier())
            yield from found

    return checks


def _found(
    context: dg.AssetCheckExecutionContext, state: State, spec: dg.AssetCheckSpec, target: Target
) -> list[AssetCheckEvaluation]:
    """Evaluate a check on the requested partitions, and then on the whole.

    Return evaluations, since Dagster makes one from an AssetCheckResult for a single partition only.
    """
    asset, name = state.asset(declared_name(spec.asset_key, state.config.prefixes.keys)), spec.name
    if not is_by_partition(asset, name):
        return [evaluation(spec.key, checked(state, asset, name), target(None))]
    known = [part for part in state.pipeline.partitions(asset.key) if part is not None]
    parts = known if spec.partitions_def is None else asked_partitions(context, known)
    if len(parts) == len(known):
        stamps = state.table_stamps((asset.key, part) for part in parts)
        parts = [part for part in parts if stamps[asset.key, part] is not None]
    results = {part: checked(state, asset, name, part) for part in parts}
    if not results:
        return [evaluation(spec.key, checked(state, asset, name), target(None))]
    if spec.partitions_def is None:
        return [evaluation(spec.key, _whole(asset, name, results, []), target(None))]
    each = [evaluation(spec.key, result, target(part), part) for part, result in results.items()]
    before = [part for part in _failing(context.instance, spec.key) if part in known and part not in results]
    return [*each, evaluation(spec.key, _whole(asset, name, results, before), target(None))]


def _whole(
    asset: Asset, name: str, results: Mapping[str, dg.AssetCheckResult], before: Sequence[str]
) -> dg.AssetCheckResult:
    """Combine all partitions into the result that Dagster shows beside the asset.

    results: of the partitions evaluated now. before: other partitions, whose last evaluation failed.
    """
    failing = {part: _facts(result) for part, result in results.items() if not result.passed}
    failing |= dict.fromkeys(before, "failed at its last evaluation")
    reasons = {f"{asset.partitions}_{part}": facts for part, facts in [*failing.items()][:_MOST_NAMED]}
    noun = plural(len(failing), asset.partitions)
    facts = {"summary": f"fails in {noun}", **reasons} if failing else _together([*results.values()])
    return check_result(name, not failing, facts=facts, looked_at=plural(len(results), asset.partitions))


def _facts(result: dg.AssetCheckResult) -> str:
    return "; ".join(f"{name}: {value.value}" for name, value in result.metadata.items())


def _together(results: Sequence[dg.AssetCheckResult]) -> dict[str, Any]:
    """Return the sums of counts, and the texts that are the same in all results."""
    facts = [{name: value.value for name, value in each.metadata.items()} for each in results]
    together: dict[str, Any] = {}
    for name, first in facts[0].items():
        values = [each[name] for each in facts]
        counts = [value for value in values if isinstance(value, int)]
        if len(counts) == len(values):
            together[name] = sum(counts)
        elif all(value == first for value in values):
            together[name] = first
    return together


def latest_record(
    instance: DagsterInstance, asset: dg.AssetKey, part: str | None
) -> AssetCheckEvaluationTargetMaterializationData | None:
    """Return the latest record of a table or of one of its partitions, which the evaluation refers to."""
    wanted = AssetRecordsFilter(asset_key=asset, asset_partitions=None if part is None else [part])
    for record in instance.fetch_materializations(wanted, limit=1).records:
        return AssetCheckEvaluationTargetMaterializationData(
            storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
        )
    return None


def evaluation(
    check: dg.AssetCheckKey,
    result: dg.AssetCheckResult,
    target: AssetCheckEvaluationTargetMaterializationData | None,
    part: str | None = None,
) -> AssetCheckEvaluation:
    """Return Dagster's record of a check on one partition, or on the whole."""
    return AssetCheckEvaluation(
        asset_key=check.asset_key,
        check_name=check.name,
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        target_materialization_data=target,
        partition=part,
    )


def _failing(instance: DagsterInstance, check: dg.AssetCheckKey) -> list[str]:
    """Return the partitions whose latest evaluation failed and refers to the current table."""
    known = instance.event_log_storage.get_asset_check_partition_info([check])
    failed = AssetCheckExecutionRecordStatus.FAILED
    return sorted(
        each.partition_key
        for each in known
        if each.partition_key is not None and each.latest_execution_status is failed and each.is_current
    )
