"""Define and evaluate the asset checks: is each table valid, and is it up to date?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import dagster as dg
import polars as pl
from dagster import AssetCheckEvaluation, AssetRecordsFilter, DagsterInstance

# An AssetCheckResult can be of one partition only, and names no table: these evaluations are of the whole as well.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from gateau_dagster.assets.steps.dead_runs import tag_with_process
from gateau_dagster.assets.steps.failures import readable_failure
from gateau_dagster.assets.steps.metadata import shown_value
from gateau_dagster.assets.steps.partitions import (
    asked_partitions,
    asset_key,
    declared_name,
    has_many,
    own_options,
    own_resource,
    partition_definitions,
)
from gateau_dagster.config import Config
from gateau_dagster.config.selection import DEPENDENCIES
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.errors import GateauError, TransientError, gateau_command
from gateau_dagster.explanation.trust import RESPONSE_CURE, far_findings
from gateau_dagster.pipeline.asset import (
    FAR_SHARE,
    FINITE_VALUES,
    FULL_COVERAGE,
    NORMALISATION,
    NOTHING_RESERVED,
    REJECTED_SHARE,
    RESPONSE_SHARE,
    TRUNCATED_SHARE,
    UNIQUE_IDS,
    UP_TO_DATE,
    Asset,
)
from gateau_dagster.pipeline.checks import checked_whole_plan
from gateau_dagster.pipeline.choice import response_share
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.losses import RAW, noun_of, rejects_of, told_parts, truncation_of
from gateau_dagster.pipeline.pipeline import Pipeline
from gateau_dagster.pipeline.plan import Work
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.registry import distinct, feature_parts
from gateau_dagster.selection.evidence import FAR, LEAST_FAR
from gateau_dagster.selection.forecast import choice_warnings
from gateau_dagster.selection.rules import DROPPED


def duplicate_ids(table: pl.DataFrame) -> list[str]:
    """Return the ids that are in the table more than once."""
    return table.filter(pl.col("sample_id").is_duplicated())["sample_id"].unique().sort().to_list()


def non_finite(values: pl.Series) -> int:
    """Return how many values (or values of lists) are null, NaN or infinite."""
    if isinstance(values.dtype, pl.List):
        # An empty list holds no value; whether it explodes to a null depends on the version of Polars.
        return values.null_count() + non_finite(values.filter(values.list.len().fill_null(0) > 0).explode())
    return int((~values.is_finite().fill_null(False)).sum())


def reserved_among(mix: pl.DataFrame, split: pl.DataFrame) -> list[str]:
    """Return the ids of the long samples of a training mix whose documents are reserved.

    Args:
        mix: `sample_id` and `origin`.
        split: tables.DOCUMENT_SPLIT.
    """
    trained = mix.filter(pl.col("origin") == "long").join(split, on="sample_id")
    documents = split.filter("reserved").select("document").unique()
    return trained.join(documents, on="document")["sample_id"].unique().sort().to_list()


DESCRIPTIONS = {
    UP_TO_DATE: "The table is up to date with its inputs; the result names the changed shards.",
    UNIQUE_IDS: "The table contains each sample once.",
    FINITE_VALUES: "The table contains no NaN and no infinity.",
    FULL_COVERAGE: "Every sample of raw_long_sft is in the table or in its rejected table, with a reason.",
    NORMALISATION: "The chosen normalisation separates the samples, and no term dominates one of more weight.",
    REJECTED_SHARE: "Few samples were rejected: up to long_sft.max_rejected of the long ones, a tenth of others.",
    TRUNCATED_SHARE: "At most a tenth of the tokens were truncated, except for a model that sees only its own window.",
    FAR_SHARE: "At least half of the chosen samples depend on far text, by the column dependency; and if the best ones "
    "are nearly all far, short conversations are trained on, too.",
    RESPONSE_SHARE: "The chosen samples' share of the response tokens, which training learns from, is at least half of "
    "their share of the samples.",
    NOTHING_RESERVED: "No document that is reserved for the evaluation was used in training.",
}
_ID = ["sample_id"]
_WARNS = {NORMALISATION, REJECTED_SHARE, TRUNCATED_SHARE, FAR_SHARE, RESPONSE_SHARE}
Parts: TypeAlias = Sequence[str | None]


def check_result(
    name: str, passed: bool, *, error: bool | None = None, facts: Mapping[str, Any] | None = None, **more: Any
) -> dg.AssetCheckResult:
    """Return a check result with metadata; a failed check leaves the table readable.

    `error`: whether it fails as an error, or only warns; None: as the check normally does.
    """
    warns = name in _WARNS if error is None else not error
    return dg.AssetCheckResult(
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR,
        metadata={fact: shown_value(value) for fact, value in {**(facts or {}), **more}.items()},
    )


def _up_to_date(state: State, asset: Asset) -> dg.AssetCheckResult:
    return staleness(state, asset, checked_whole_plan(state).of(asset.key))


def staleness(state: State, asset: Asset, work: Work | None) -> dg.AssetCheckResult:
    """Check that an asset is up to date; name the stale shards with reasons. `work`: its part of the whole plan."""
    if work is None:
        return check_result(UP_TO_DATE, True, summary="up to date")
    if asset.key not in state.pipeline.required:
        return check_result(UP_TO_DATE, True, summary="out of date, but no configured asset reads it")
    if not asset.partitions:
        return check_result(UP_TO_DATE, False, summary=work.reasons[None])
    reasons = "\n".join(f"- `{shard}`: {work.reasons[shard]}" for shard in work.partitions)
    share = f"{len(work.partitions)} of {len(state.pipeline.partitions(asset.key))} {asset.partitions}s"
    changed: dict[str, Any] = {f"changed_{asset.partitions}s": ", ".join(work.partitions)}
    return check_result(
        UP_TO_DATE,
        False,
        summary=f"{share} are out of date; run the job `refresh` to rebuild exactly these",
        **changed,
        reasons=dg.MarkdownMetadataValue(reasons),
    )


def _unique_ids(state: State, asset: Asset, parts: Parts) -> dg.AssetCheckResult:
    repeated = duplicate_ids(_rows(state, asset, parts, _ID))
    return check_result(UNIQUE_IDS, not repeated, repeated_ids=", ".join(repeated[:20]) or "none")


def _finite_values(state: State, asset: Asset, parts: Parts) -> dg.AssetCheckResult:
    counts = {}
    for column in asset.columns:
        if column.name in asset.finite:
            values = _rows(state, asset, parts, [column.name])[column.name]
            counts[f"not_finite_{column.name}"] = non_finite(values.drop_nulls() if column.nullable else values)
    return check_result(FINITE_VALUES, not any(counts.values()), **counts)


def _full_coverage(state: State, asset: Asset, parts: Parts) -> dg.AssetCheckResult:
    shards = [part for part in parts if part is not None] or state.shards
    samples, rejected = state.store.read_all(RAW, shards, _ID), state.store.read_rejected(asset.key, parts)
    return coverage(samples, _rows(state, asset, parts, _ID), rejected)


def coverage(raw: pl.DataFrame, table: pl.DataFrame, rejected: pl.DataFrame) -> dg.AssetCheckResult:
    """Check that every sample of `raw` is in the table or rejected, none in both, and nothing else in either."""
    samples, scored, refused = ({*each["sample_id"]} for each in (raw, table, rejected))
    missing = sorted(samples - scored - refused)
    unknown = sorted((scored | refused) - samples)
    return check_result(
        FULL_COVERAGE,
        not missing and not unknown and len(scored) + len(refused) == len(samples),
        samples=len(samples),
        in_table=len(scored),
        rejected=len(refused),
        missing=", ".join(missing[:20]) or "none",
        unknown=", ".join(unknown[:20]) or "none",
    )


def _normalisation(state: State, asset: Asset) -> dg.AssetCheckResult:
    from gateau_dagster.selection.presets import check

    selection = state.config.selection
    found = check(_table(state, asset, None), preset=selection.preset, alpha=selection.alphas[selection.preset])
    return check_result(NORMALISATION, not found.degenerate, summary=found.sentence, distinct=found.distinct_score)


def _rejected_share(state: State, asset: Asset) -> dg.AssetCheckResult:
    require_made(state, asset)
    part, found = max(
        ((part, rejects_of(state, asset, part)) for part in told_parts(state, asset)), key=lambda each: each[1].share
    )
    most = state.config.long_sft.max_rejected if asset.key == RAW else None
    return check_result(
        REJECTED_SHARE,
        not found.notable if most is None else found.share <= most and not found.unread,
        error=most is not None,
        summary=_of_part(part, found.sentence(noun_of(asset))),
        samples=found.given,
        rejected=found.count,
        share=found.share,
    )


def _of_part(part: str | None, sentence: str) -> str:
    return sentence if part is None else f"{part}: {sentence}"


def _truncated_share(state: State, asset: Asset) -> dg.AssetCheckResult:
    require_made(state, asset)
    part, found = max(
        ((part, truncation_of(state, asset, part)) for part in told_parts(state, asset)),
        key=lambda each: each[1].share,
    )
    return check_result(
        TRUNCATED_SHARE,
        not found.notable,
        summary=_of_part(part, found.sentence()),
        samples=found.samples,
        truncated_samples=found.cut,
        tokens=found.tokens,
        truncated_tokens=found.cut_tokens,
        share=found.share,
    )


def _nothing_reserved(state: State, asset: Asset) -> dg.AssetCheckResult:
    found = reserved_among(_table(state, asset, ["sample_id", "origin"]), state.read(SPLIT))
    return check_result(NOTHING_RESERVED, not found, trained_on=", ".join(found[:20]) or "none")


def _far_share(state: State, asset: Asset) -> dg.AssetCheckResult:
    """Check the share of chosen samples that depend on far text.

    The result counts the samples of each dependency, and those that `selection.drop` leaves out.
    """
    found = _table(state, asset, ["dependency"])["dependency"]
    share = float(found.is_in(FAR).fill_null(False).mean() or 0.0)  # pyright: ignore[reportArgumentType]
    warnings = choice_warnings(state.config.selection, found, has_chats=state.config.short_chat is not None)
    said = [*far_findings(state.config.selection, found), *warnings]
    left = state.read_rejected(asset.key)["reason"].str.starts_with(DROPPED).sum()
    return check_result(
        FAR_SHARE,
        (share >= LEAST_FAR and not warnings) or found.is_empty(),
        facts={
            "summary": " ".join(said) or f"{percentage(share)} of the chosen samples depend on far text.",
            **{name: int((found == name).sum()) for name in DEPENDENCIES},
        },
        share=share,
        left_out_by_selection_drop=int(left),
    )


def _response_share(state: State, asset: Asset) -> dg.AssetCheckResult:
    found = response_share(state, _table(state, asset, _ID))
    if found is None:
        return check_result(RESPONSE_SHARE, True, summary="not counted: perplexity/long is not in the store")
    return check_result(
        RESPONSE_SHARE,
        not found.is_small,
        summary=f"{found.sentence}. {RESPONSE_CURE}" if found.is_small else f"{found.sentence}.",
        share=found.share,
        response_tokens=found.chosen_tokens,
    )


def _rows(state: State, asset: Asset, parts: Parts, columns: list[str]) -> pl.DataFrame:
    return pl.concat([state.store.read(asset.key, part, columns) for part in parts])


def _table(state: State, asset: Asset, columns: list[str] | None) -> pl.DataFrame:
    if not asset.partitions:
        return state.store.read(asset.key, None, columns)
    return state.store.read_all(asset.key, require_made(state, asset), columns)


def require_made(state: State, asset: Asset) -> list[str]:
    """Return the stored partitions; empty for an unpartitioned asset, whose read raises if the table is missing.

    Raises:
        GateauError: no partition is stored.
    """
    stamps = state.table_stamps((asset.key, part) for part in state.pipeline.partitions(asset.key) if asset.partitions)
    found = [part for (_, part), stamp in stamps.items() if part is not None and stamp is not None]
    if asset.partitions and not found:
        raise GateauError(
            "storage.not_computed",
            f"{asset.key} has no {asset.partitions} in the store yet. Materialise the asset, or run "
            f"`{gateau_command('run')}`.",
        )
    return found


@dataclass(frozen=True, kw_only=True)
class WholeCheck:
    """A check of whole assets that a feature adds, in CHECKS of its module `assets`.

    name: as Asset.checks names it, and no other check is named. evaluate: returns its `check_result`.
    """

    name: str
    description: str
    evaluate: Callable[[State, Asset], dg.AssetCheckResult]


@cache
def _of_features() -> Mapping[str, WholeCheck]:
    own = dict.fromkeys(DESCRIPTIONS)
    added = ((each.name, each) for checks in feature_parts("assets", "CHECKS", tuple) for each in checks)
    return {name: each for name, each in distinct([*own.items(), *added], "check").items() if each is not None}


_OF_THE_WHOLE: dict[str, Callable[[State, Asset], dg.AssetCheckResult]] = {
    UP_TO_DATE: _up_to_date,
    NORMALISATION: _normalisation,
    REJECTED_SHARE: _rejected_share,
    TRUNCATED_SHARE: _truncated_share,
    NOTHING_RESERVED: _nothing_reserved,
    FAR_SHARE: _far_share,
    RESPONSE_SHARE: _response_share,
}
_OF_PARTS: dict[str, Callable[[State, Asset, Parts], dg.AssetCheckResult]] = {
    UNIQUE_IDS: _unique_ids,
    FINITE_VALUES: _finite_values,
    FULL_COVERAGE: _full_coverage,
}


def is_by_partition(asset: Asset, name: str) -> bool:
    """Return whether a check looks at each partition by itself."""
    return bool(asset.partitions) and name in _OF_PARTS


def is_partitioned(pipeline: Pipeline, asset: Asset, name: str) -> bool:
    """Return whether Dagster records each partition, at 10 ms each; other checks name partitions in the whole."""
    return bool(asset.partitions) and name == FULL_COVERAGE and not has_many(pipeline, asset.key)


def checked(state: State, asset: Asset, name: str, part: str | None = None) -> dg.AssetCheckResult:
    """Evaluate a check on one partition, or on all stored ones.

    A missing or damaged table fails its check, with the reason.

    Raises:
        TransientError: the store does not answer.
    """
    try:
        if name in _of_features():
            return _of_features()[name].evaluate(state, asset)
        if name in _OF_THE_WHOLE:
            return _OF_THE_WHOLE[name](state, asset)
        return _OF_PARTS[name](state, asset, [part] if part is not None else require_made(state, asset) or [None])
    except TransientError:
        raise
    except GateauError as error:
        return check_result(name, False, summary=str(error))


_MOST_NAMED = 20
Target: TypeAlias = Callable[[str | None], AssetCheckEvaluationTargetMaterializationData | None]


def check_names(asset: Asset) -> list[str]:
    """Return the names of an asset's checks."""
    return [UP_TO_DATE, *asset.checks]


def asset_checks(config: Config) -> list[dg.AssetChecksDefinition]:
    """Define the checks of all assets; one step per asset, so that its table is read once."""
    pipeline = pipeline_of(config)
    return [_checks(pipeline, asset) for asset in pipeline.assets]


def _checks(pipeline: Pipeline, asset: Asset) -> dg.AssetChecksDefinition:
    names, partitions = check_names(asset), partition_definitions(pipeline)
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=asset_key(pipeline.config, asset.key),
            description=_of_features()[name].description if name in _of_features() else DESCRIPTIONS[name],
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
    known = instance.event_log_storage.get_asset_check_partition_info([check])
    failed = AssetCheckExecutionRecordStatus.FAILED
    return sorted(
        each.partition_key
        for each in known
        if each.partition_key is not None and each.latest_execution_status is failed and each.is_current
    )
