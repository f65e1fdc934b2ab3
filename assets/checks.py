"""Asset checks: is each table what it promises, and is it up to date?"""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import polars as pl

from assets.dead_runs import tag_with_process
from assets.event_log import asset_key
from assets.failures import readable_failure
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.evaluation.registry import FAMILY, all_benchmarks
from gateau_dagster.pipeline.node import Node
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.table_checks import Coverage, duplicate_ids, non_finite, scored_or_rejected
from resources.configuration import ConfigurationResource

UP_TO_DATE = "up_to_date"
UNIQUE_IDS = "unique_ids"
FINITE_VALUES = "finite_values"
FULL_COVERAGE = "full_coverage"
NORMALISATION = "normalisation"

_FINITE_COLUMNS = {
    "cam": ["segment_perplexity", "segment_attention"],
    "combined_scores": ["perplexity_short", "perplexity_long", "hmp", "score"],
    "selected_subset": ["score"],
}
_FINITE_FAMILIES = {"perplexity": ["perplexity", "mean_nll", "mean_probability"], "method_scores": ["score"]}
_NULLABLE = {"method_scores"}  # null: the method cannot score the sample
_NOT_BY_SAMPLE = {
    *("pre_experience_mix", "pre_experienced", "homologous_mix", "homologous_model", "training_mix"),
    *("checkpoint", "evaluation", "comparison", "report"),
}
_PARTIAL = {"raw_long_sft", "short_chat_mix", "selected_subset"}  # not every sample has to be there
_DESCRIPTIONS = {
    UP_TO_DATE: "Whether the table was made from what is there now; names the changed shards.",
    UNIQUE_IDS: "No sample stands in the table twice.",
    FINITE_VALUES: "No NaN and no infinity.",
    FULL_COVERAGE: "Every sample of raw_long_sft is in the table or in its rejected table, with a reason.",
    NORMALISATION: "The chosen normalisation still tells samples apart, and no term overrules one of more weight.",
}


def checks_of(asset: str) -> list[str]:
    """The names of an asset's checks."""
    family = asset.split("/", maxsplit=1)[0]
    of_samples = family not in _NOT_BY_SAMPLE
    names = [UP_TO_DATE]
    if of_samples:
        names.append(UNIQUE_IDS)
    if _finite_columns(asset):
        names.append(FINITE_VALUES)
    if of_samples and family not in _PARTIAL:
        names.append(FULL_COVERAGE)
    if asset == "combined_scores":
        names.append(NORMALISATION)
    return names


def _finite_columns(asset: str) -> list[str]:
    family, _, name = asset.partition("/")
    if family == FAMILY:
        return list(all_benchmarks()[name].finite)
    return _FINITE_COLUMNS.get(asset) or _FINITE_FAMILIES.get(family, [])


def asset_checks(assets: list[str]) -> list[dg.AssetChecksDefinition]:
    """The checks of all assets; one step an asset, so that its table is read once."""
    return [_checks(asset) for asset in assets]


def _checks(asset: str) -> dg.AssetChecksDefinition:
    names = checks_of(asset)
    key = asset_key(asset)
    specs = [dg.AssetCheckSpec(name, asset=key, description=_DESCRIPTIONS[name]) for name in names]

    @dg.multi_asset_check(name=f"check_{asset.replace('/', '_')}", specs=specs, can_subset=True)
    def checks(
        context: dg.AssetCheckExecutionContext, configuration: ConfigurationResource
    ) -> Iterator[dg.AssetCheckResult]:
        tag_with_process(context)
        asked = {check.name for check in context.selected_asset_check_keys}
        with readable_failure(context):
            retries = configuration.config.execution.retries
        with readable_failure(context, retries):
            state = configuration.state()
            # All before the first is yielded: a step that is tried again must not yield one twice.
            results = [_checked(state, state.node(asset), name) for name in names if name in asked]
        yield from results

    return checks


def _checked(state: State, node: Node, name: str) -> dg.AssetCheckResult:
    """A table that is missing or damaged fails its check, with the reason; only what may pass ends the step."""
    try:
        return _RUN[name](state, node)
    except TransientError:
        raise
    except GateauError as error:
        return _result(node, name, False, summary=str(error))


def _result(node: Node, name: str, passed: bool, **metadata: Any) -> dg.AssetCheckResult:
    """A failed check warns: what is in the table stays readable, and the message says what is wrong with it."""
    return dg.AssetCheckResult(
        asset_key=asset_key(node.asset),
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if name in {UP_TO_DATE, NORMALISATION} else dg.AssetCheckSeverity.ERROR,
        metadata=dict(metadata),
    )


def up_to_date(state: State, node: Node) -> dg.AssetCheckResult:
    """Names the changed shards, and why each is out of date."""
    work = state.whole_plan().of(node.asset)
    if work is None:
        return _result(node, UP_TO_DATE, True, summary="made from what is there now")
    if not node.wanted:
        return _result(node, UP_TO_DATE, True, summary="not up to date, and nothing that is configured reads it")
    if not node.partitioned:
        return _result(node, UP_TO_DATE, False, summary=work.reasons[None])
    reasons = "\n".join(f"- `{shard}`: {work.reasons[shard]}" for shard in work.partitions)
    share = f"{len(work.partitions)} of {len(state.shards)} shards"
    return _result(
        node,
        UP_TO_DATE,
        False,
        summary=f"{share} are out of date; the job `refresh` mends exactly these",
        changed_shards=", ".join(work.partitions),
        reasons=dg.MarkdownMetadataValue(reasons),
    )


def _unique_ids(state: State, node: Node) -> dg.AssetCheckResult:
    repeated = duplicate_ids(_table(state, node, ["sample_id"]))
    return _result(node, UNIQUE_IDS, not repeated, repeated_ids=", ".join(repeated[:20]) or "none")


def _finite_values(state: State, node: Node) -> dg.AssetCheckResult:
    family = node.asset.split("/", maxsplit=1)[0]
    values = {column: _table(state, node, [column])[column] for column in _finite_columns(node.asset)}
    counts = {name: non_finite(each.drop_nulls() if family in _NULLABLE else each) for name, each in values.items()}
    return _result(node, FINITE_VALUES, not any(counts.values()), **{f"not_finite_{c}": n for c, n in counts.items()})


def _full_coverage(state: State, node: Node) -> dg.AssetCheckResult:
    table = _table(state, node, ["sample_id"])
    shards = [shard for shard in state.shards if not node.partitioned or state.stamp(node.asset, shard) is not None]
    partitions = shards if node.partitioned else [None]
    found = scored_or_rejected(
        state.store.read_all("raw_long_sft", shards, ["sample_id"]),
        table,
        state.store.read_rejected(node.asset, partitions),
    )
    return _result(node, FULL_COVERAGE, found.complete, **_coverage_metadata(found))


def _coverage_metadata(found: Coverage) -> dict[str, Any]:
    return {
        "samples": found.samples,
        "in_table": found.in_table,
        "rejected": found.rejected,
        "missing": ", ".join(found.missing[:20]) or "none",
        "unknown": ", ".join(found.unknown[:20]) or "none",
    }


def _normalisation(state: State, node: Node) -> dg.AssetCheckResult:
    from gateau_dagster.selection.degeneration import check

    selection = state.config.selection
    found = check(_table(state, node, None), preset=selection.preset, alpha=selection.alphas[selection.preset])
    return _result(node, NORMALISATION, not found.degenerate, summary=found.sentence, distinct=found.distinct_score)


def _table(state: State, node: Node, columns: list[str] | None) -> pl.DataFrame:
    """The shards that are there, or the global table."""
    if not node.partitioned:
        return state.store.read(node.asset, None, columns)
    shards = [shard for shard in state.shards if state.stamp(node.asset, shard) is not None]
    if not shards:
        raise GateauError(f"{node.asset} has no shard in the store yet. Materialise it, or run `gateau run`.")
    return state.store.read_all(node.asset, shards, columns)


_RUN: dict[str, Callable[[State, Node], dg.AssetCheckResult]] = {
    UP_TO_DATE: up_to_date,
    UNIQUE_IDS: _unique_ids,
    FINITE_VALUES: _finite_values,
    FULL_COVERAGE: _full_coverage,
    NORMALISATION: _normalisation,
}
