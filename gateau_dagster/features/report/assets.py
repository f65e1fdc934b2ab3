"""Make the asset `report`: one self-contained page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import rounded, rows_table
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.explanation.trust import trust_lines
from gateau_dagster.features.evaluation import CHARACTERISTICS, EXPERIMENT, PAIRS, UNTOUCHED_EXPERIMENT
from gateau_dagster.features.evaluation.assets.experiment import contamination_of
from gateau_dagster.features.evaluation.experiment_values import experiment_inputs, forecasts_and_outcomes
from gateau_dagster.features.evaluation.registry import asking_benchmarks, asset_of, compared_benchmarks
from gateau_dagster.features.report.feature import EXPLORER_FILE, REPORT_FILE
from gateau_dagster.features.report.further import (
    FurtherSection,
    characteristics_section,
    contamination_section,
    pairwise_section,
)
from gateau_dagster.pipeline.choice import (
    chosen_samples,
    dependence,
    forecast_of,
    lacking_for_forecast,
    response_share,
    warnings_of_choice,
)
from gateau_dagster.pipeline.declarations import COMPARISON_FILE
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.losses import Totals, losses, totals, unseen_shares
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.selection_reads import CHOSEN, EVIDENCE, PRESETS_TABLE, compared_methods, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.scoring.pair_tables import CAM
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import read_document, read_training_log, write_document

if TYPE_CHECKING:
    from gateau_dagster.features.evaluation.statistics.results import ExperimentInputs
    from gateau_dagster.features.report.inputs import ReportInputs


LENGTHS = "perplexity/long"
LENGTH_COLUMNS = ["sample_id", "context_tokens", "response_tokens", "perplexity"]


@makes_asset
def report(step: Step) -> None:
    """Draw plots, tables and provenance of everything upstream."""
    from gateau_dagster.features.report.build import build_report
    from gateau_dagster.features.report.drawings import drawings
    from gateau_dagster.features.report.inputs import compare
    from gateau_dagster.features.report.viewer.publish import publish

    for output in step.in_turn():
        store, inputs = output.state.store, _inputs(output.state)
        complete = Stamp(fingerprint=output.wanted.fingerprint, inputs=output.wanted.inputs)
        # The viewer is published first, since the page's stamp covers both.
        publish(output.state, inputs, _all_method_scores(output.state), complete, output.progress)
        comparison = compare(inputs)
        page = build_report(inputs, comparison, drawings(inputs, comparison))
        write_document(store, REPORT_FILE, page, complete)
        address = store.files.address(REPORT_FILE)
        as_link = dg.MetadataValue.path if store.files.is_local else dg.MetadataValue.url
        links = {"report": as_link(address), "viewer": as_link(store.files.address(EXPLORER_FILE))}
        # The figures are in the page, and with the assets that they describe.
        output.finish(complete, **links, size_bytes=len(page.encode()), totals=_totals_metadata(inputs.totals))


def _inputs(state: State) -> "ReportInputs":
    from gateau_dagster.comparison.result import MethodComparison
    from gateau_dagster.explanation.maps import evidence_maps, named_by_sample
    from gateau_dagster.features.report.effort import efforts_by_asset
    from gateau_dagster.features.report.inputs import ReportInputs

    store, assets = state.store, set(state.asset("report").reads)
    recorded = {key: stamp for key, stamp in state.recorded().items() if key[0] in assets}
    ranking, methods = ranking_asset(state.config), None
    if "comparison" in assets:
        methods = MethodComparison.from_json(read_document(store, COMPARISON_FILE))
    experiment = experiment_inputs(state, store.read(EXPERIMENT)) if EXPERIMENT in assets else None
    return ReportInputs(
        config=state.config,
        raw=_raw(state),
        combined_scores=store.read(PRESETS_TABLE) if PRESETS_TABLE in assets else None,
        method_scores=None if ranking == PRESETS_TABLE else state.read(ranking, ["sample_id", "score"]),
        lengths=state.read(LENGTHS, LENGTH_COLUMNS) if LENGTHS in assets else None,
        selected_subset=store.read(CHOSEN, columns=["sample_id"]),
        rule=chosen.rule if (chosen := state.stamp(CHOSEN, None)) is not None else "",
        reserved=store.read(SPLIT).filter("reserved")["sample_id"].to_list() if SPLIT in assets else (),
        rejected=_rejected(state),
        losses=[*losses(state, assets)],
        evidence=partial(evidence_maps, state),
        named=named_by_sample(state) if CAM in assets else None,
        dependencies=state.read(EVIDENCE, ["sample_id", "dependency"]) if EVIDENCE in assets else None,
        trust=trust_lines(state),
        responses=response_share(state),
        totals=[*totals(state, assets, recorded)],
        unseen=unseen_shares(state, [state.asset(key) for key in assets]),
        training_log=read_training_log(store) if "checkpoint" in assets else None,
        evaluations={name: store.read(asset_of(name)) for name in compared_benchmarks(state.config)},
        experiment=experiment,
        **(_forecast(state, experiment) if {CAM, LENGTHS} <= assets and lacking_for_forecast(state) is None else {}),
        further=further_sections(state),
        notes=[note for notes in hooks("report", "notes") for note in notes(state)],
        fingerprints={
            asset if partition is None else f"{asset}[{partition}]": stamp.fingerprint
            for (asset, partition), stamp in recorded.items()
            if stamp is not None
        },
        efforts=efforts_by_asset(recorded),
        methods=methods,
        generated_at=datetime.now(UTC),
    )


def _forecast(state: State, experiment: "ExperimentInputs | None") -> dict[str, Any]:
    """Return the fields of ReportInputs about the forecast."""
    recipe, depends = Recipe(state.config), dependence(state)
    outcomes, slopes = forecasts_and_outcomes(state, experiment, depends)
    made = chosen_samples(state, recipe, depends)
    prediction = forecast_of(state, recipe, depends, made, slopes=slopes)
    warnings = warnings_of_choice(recipe, prediction, depends, made.chosen)
    return {"forecast": prediction, "forecast_warnings": warnings, "outcomes": outcomes}


def _all_method_scores(state: State) -> dict[str, pl.DataFrame]:
    assets = state.asset("report").reads
    made = (each for each in compared_methods(state.config) if each.asset in assets)
    return {each.name: state.read(each.asset, ["sample_id", "score"]) for each in made}


def _raw(state: State) -> pl.DataFrame | pl.LazyFrame:
    """Return the long samples; on a local store lazily, so that only the displayed texts are read."""
    if state.store.files.is_local:
        for shard in state.shards:
            state.store.verify("raw_long_sft", shard)
        paths = [state.store.address("raw_long_sft", shard) for shard in state.shards]
        columns = tables.schema((*tables.RAW_LONG_SFT, tables.CONVERSATION))
        # A folder may be named [so].
        return pl.scan_parquet(paths, glob=False, schema=columns, missing_columns="insert")
    return state.store.read_all("raw_long_sft", state.shards)


def _rejected(state: State) -> dict[str, pl.DataFrame]:
    found = {
        asset.key: state.read_rejected(asset.key)
        for asset in state.pipeline.assets
        if asset.key in state.pipeline.required and asset.own_rejects
    }
    return {asset: table for asset, table in found.items() if not table.is_empty()}


def further_sections(state: State) -> list[FurtherSection]:
    """Return the sections for the optional tables that the report reads."""
    found, reads = [], state.asset("report").reads
    if UNTOUCHED_EXPERIMENT in reads:
        overlaps = {name: contamination_of(state, name) for name in asking_benchmarks(state.config)}
        found.append(contamination_section(overlaps, state.read(EXPERIMENT), state.read(UNTOUCHED_EXPERIMENT)))
    pairs = {asset.partition("/")[2]: state.read(asset) for asset in reads if asset.startswith(f"{PAIRS}/")}
    if pairs:
        found.append(pairwise_section(pairs))
    if CHARACTERISTICS in reads:
        found.append(characteristics_section(state.read(CHARACTERISTICS)))
    for sections in hooks("report", "sections"):
        found += sections(state)
    return found


def _totals_metadata(found: Sequence[Totals]) -> dg.TableMetadataValue:
    """Return a row per table with its totals, which Dagster's pages of partitions do not add up."""
    types = {"table": "string", "rows": "int", "rejected": "int", "reasons": "string", "tokens": "int"}
    types |= {"truncated_tokens": "int", "hours": "float"}
    rows = [
        {
            "table": each.asset,
            "rows": each.rows,
            "rejected": each.rejected.count if each.rejected else None,
            "reasons": each.reasons,
            "tokens": each.tokens,
            "truncated_tokens": each.truncation.cut_tokens if each.truncation else None,
            "hours": None if each.seconds is None else rounded(each.seconds / 3600),
        }
        for each in found
    ]
    return rows_table(rows, types)
