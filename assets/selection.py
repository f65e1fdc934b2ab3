"""Rank and choose the samples: `evidence`, `combined_scores`, `method_scores/<method>` and `selected_subset`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import (
    as_table,
    chart,
    figures_metadata,
    first_histogram,
    preview,
    source_chart,
)
from gateau_dagster.assets.steps.step import Output, Step, makes_asset
from gateau_dagster.assets.training_mix import mix_tokenizer
from gateau_dagster.config import PRESETS
from gateau_dagster.config.selection import DRAWING
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import CAM_COLUMNS, PERPLEXITY_COLUMNS, EvidenceRows
from gateau_dagster.explanation.evidence import evidence as evidence_map
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import chosen_methods, reads_attention
from gateau_dagster.pipeline.choice import (
    LONG,
    RAW,
    Candidates,
    chosen_samples,
    dependence,
    dependence_of,
    forecast_of,
    lacking_for_forecast,
    response_share,
    warnings_of_choice,
)
from gateau_dagster.pipeline.losses import check_some_scored
from gateau_dagster.pipeline.recipes import recipe_of
from gateau_dagster.pipeline.selection_reads import (
    EVIDENCE,
    EVIDENCE_READS,
    PRESETS_TABLE,
    has_evidence,
)
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.scoring.pair_tables import CAM, THETA_B
from gateau_dagster.selection.combine import (
    READ_COLUMNS,
    JoinedShard,
    check_observed,
    choose,
    join_all,
    join_shard,
    ranked,
    with_reasons,
)
from gateau_dagster.selection.evidence import far_share
from gateau_dagster.selection.rules import BY_RULE, DROPPED, LeftOut
from gateau_dagster.selection.wording import forecast_lines, forecast_record, short_lines
from gateau_dagster.storage.content import rows_digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_BESIDE = {CAM: CAM_COLUMNS, LONG: PERPLEXITY_COLUMNS}


@makes_asset
def evidence(step: Step) -> None:
    """Find what each response depends on, shard by shard."""
    tokenizer = mix_tokenizer(step.state, THETA_B, step.progress)
    if not tokenizer.is_fast:
        step.log.warning(
            f"The tokenizer of models.{THETA_B} has no tokenizer.json, so it does not report the offsets of its tokens."
            " The column evidence is null. The column dependency is complete."
        )
    for done, output in enumerate(step.in_turn(), start=1):
        table, rejected = _evidence(step.state, output.partition, tokenizer)
        output.write(table, rejected)
        output.metadata |= dependency_figures(table)
        step.progress(done, len(step.stale), "shards")


def _evidence(
    state: State, shard: str | None, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return tables.EVIDENCE of a shard, and the samples that are missing from a table, with the reasons."""
    raw = state.store.read(RAW, shard)
    found = {
        asset: state.store.read(asset, shard, [*dict.fromkeys((*columns, *_BESIDE[asset]))])
        for asset, columns in EVIDENCE_READS.items()
    }
    depends = raw.select("sample_id", "digest").join(
        dependence_of(found[CAM], found[LONG]), on="sample_id", maintain_order="left"
    )
    spans = pl.Series("evidence", [None] * depends.height, dtype=tables.SPANS)
    if tokenizer.is_fast:
        samples = raw.join(depends.select("sample_id", "segments"), on="sample_id", maintain_order="left")
        spans = pl.Series("evidence", [*_spans(state, samples, found, tokenizer)], dtype=tables.SPANS)
    absent = raw.select("sample_id").join(depends, on="sample_id", how="anti")
    rejected = with_reasons(absent, [state.read_rejected(asset, shard) for asset in found])
    table = depends.with_columns(spans).select(tables.schema(tables.EVIDENCE).names())
    return table, rejected.with_columns(pl.col("reason").fill_null(f"not in all of {', '.join(found)}"))


def _spans(
    state: State, samples: pl.DataFrame, found: Mapping[str, pl.DataFrame], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[list[dict[str, Any]]]:
    """Yield the places, gains and tokens of the segments that are evidence for each sample."""
    scoring = state.config.scoring
    length, template = scoring.segment_length, scoring.template
    cam, long = ({row["sample_id"]: row for row in found[asset].iter_rows(named=True)} for asset in (CAM, LONG))
    for row in samples.iter_rows(named=True):
        segments = []
        if row["segments"]:
            rows = EvidenceRows(cam=cam[row["sample_id"]], long=long[row["sample_id"]], short=None)
            given = evidence_map(Sample.of_row(row), rows, tokenizer, segment_length=length, template=template)
            segments = [given.segments[index] for index in row["segments"]]
        yield [{name: getattr(each, name) for name in ("start", "end", "gain", "tokens")} for each in segments]


T = TypeVar("T")
SHOWN = 10
"""The number of rows shown on the assets' pages."""


@makes_asset
def combined_scores(step: Step) -> None:
    """Compute Eq. 2 and Eq. 6 under every preset; the configured one decides the ranking."""
    for output in step.in_turn():
        scores, rejected = scored(output.state, output.progress)
        if EVIDENCE in output.state.asset(PRESETS_TABLE).reads:
            scores = with_evidence(output.state, scores)
        output.write(scores, rejected)
        output.metadata |= first_histogram(scores) | _score_figures(output.state, scores) | preview(scores, rows=SHOWN)


@makes_asset
def selected_subset(step: Step) -> None:
    """Choose the samples that the single run, or each variant, is trained on."""
    depends = _known_dependence(step.state) if step.stale else None
    candidates = Candidates(step.state)
    for output in step.in_turn():
        recipe = recipe_of(step.state.config, output.partition)
        if recipe.of_feature is not None:
            _write_made(output, recipe.of_feature.make(step.state.read))
            continue
        made = chosen_samples(step.state, recipe, depends, candidates)
        chosen, limited, taken = made.chosen, made.left_out, made.taken
        subset = pl.DataFrame(schema=tables.schema(tables.SELECTED_SUBSET))
        if chosen.height:
            subset = with_texts(step.state, chosen, output.progress)
        if recipe.has_evidence:
            subset = with_evidence(output.state, subset)
        if limited.unfilled:
            step.log.warning(f"{output.partition}: {unfilled(limited)}" if output.partition else unfilled(limited))
        # The content digest covers what training reads: an equal choice under other scores must not retrain.
        content = rows_digest(subset.select("sample_id", "digest").sort("sample_id"))
        output.write(subset, _rejects(output, limited), content=content, rule=taken.get("rule", ""))
        output.metadata |= taken
        if subset.height:
            by_rank = taken.get("rule") not in DRAWING
            output.metadata |= _subset_figures(subset, made.scores, by_rank=by_rank) | limit_figures(limited)
            if (learned := response_share(step.state, chosen)) is not None:
                output.metadata |= {"response_tokens": learned.chosen_tokens, "response_token_share": learned.share}
        if depends is not None and recipe.variant.kind == "selected" and chosen.height:
            prediction = forecast_of(step.state, recipe, depends, made)
            output.metadata |= {
                "verdict": prediction.verdict,
                "forecast": as_table(forecast_lines(prediction)),
                "forecast_figures": forecast_record(prediction),
            }
            step.log.info(
                " ".join([*filter(None, [output.partition and f"{output.partition}:"]), *short_lines(prediction)])
            )
            for number, warning in enumerate(warnings_of_choice(recipe, prediction, depends, chosen), start=1):
                output.warn(f"warning_{number}", warning)


def with_evidence(state: State, samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples with the columns of tables.DEPENDS, null where `evidence` has no row."""
    found = state.read(EVIDENCE, ["sample_id", *tables.schema(tables.DEPENDS)])
    return samples.join(found, on="sample_id", how="left", maintain_order="left")


def _write_made(output: Output, subset: pl.DataFrame) -> None:
    subset = subset.with_columns(score=pl.lit(0.0), rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    output.write(subset, content=rows_digest(subset.select("sample_id", "digest").sort("sample_id")))


def scored(state: State, progress: Progress) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `combined_scores`, joined by shard and ranked as a whole, and the samples missing from it."""
    selection = state.config.selection
    absent: list[pl.DataFrame] = []
    check_some_scored(state, PRESETS_TABLE)
    measures = join_all(_joined_shards(state, absent, progress))
    if reads_attention(state.config):
        check_observed(measures)
    scores = ranked(measures, preset=selection.preset, alpha=selection.alpha)
    return scores, with_reasons(pl.concat(absent), [state.read_rejected(asset) for asset in READ_COLUMNS])


def _joined_shards(state: State, absent: list[pl.DataFrame], progress: Progress) -> Iterator[JoinedShard]:
    """Yield each shard's joined tables; append the ids of samples missing from a table to `absent`."""
    for done, (raw_ids, found) in enumerate(_one_ahead(partial(_shard_tables, state), state.shards), start=1):
        joined = join_shard(found)
        absent.append(raw_ids.join(joined.frame, on="sample_id", how="anti"))
        progress(done, len(state.shards), "shards")
        yield joined


def _shard_tables(state: State, shard: str) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    found = {name: state.store.read(name, shard, columns) for name, columns in READ_COLUMNS.items()}
    return state.store.read(RAW, shard, ["sample_id"]), found


def _one_ahead(read: Callable[[str], T], shards: Sequence[str]) -> Iterator[T]:
    """Yield `read(shard)` for each shard, reading the next one while the caller works on this one."""
    with ThreadPoolExecutor(1) as pool:
        # One shard ahead and not more: reading and computing overlap, while memory holds two shards.
        waiting = pool.submit(read, shards[0])
        for following in shards[1:]:
            ready, waiting = waiting.result(), pool.submit(read, following)
            yield ready
        yield waiting.result()


def _score_figures(state: State, scores: pl.DataFrame) -> dict[str, Any]:
    from gateau_dagster.plots.score_plots import score_distributions, terms_scatter

    preset = state.config.selection.preset
    # Each plot filters its table, so pass only the columns that it shows.
    each = scores.select(f"{kind}_{preset}" for preset in PRESETS for kind in ("score", "cas"))
    terms = scores.select(f"{kind}_{preset}" for kind in ("hmp", "cas", "rank"))
    return figures_metadata(
        {
            "score distributions": score_distributions(each),
            "terms": terms_scatter(terms, preset=preset),
        }
    )


def unfilled(limited: LeftOut) -> str:
    """Return a log sentence for a choice with fewer samples than requested, with the settings that left samples out."""
    counts = {
        "selection.drop": limited.rows["reason"].str.starts_with(DROPPED).sum(),
        "selection.rule": limited.rows["reason"].str.starts_with(BY_RULE).sum(),
        "selection.duplicates: one": limited.repeats,
        "selection.per_document": limited.beyond_the_best,
    }
    settings = [setting for setting, count in counts.items() if count]
    leave = "leaves" if len(settings) == 1 else "leave"
    return f"{' and '.join(settings)} {leave} too few samples: {limited.unfilled} fewer are chosen than configured"


def _rejects(output: Output, limited: LeftOut) -> pl.DataFrame | None:
    """Return the table of samples left out of the choice; an empty one replaces that of an earlier choice."""
    if limited.rows.height:
        return limited.rows
    earlier = output.state.read_rejected(output.asset, output.partition)
    return earlier.clear() if earlier.height else None


def limit_figures(limited: LeftOut) -> dict[str, Any]:
    """Return the counts of samples left out by `selection.drop`, `duplicates` and `per_document` as metadata."""
    found = {"left_out_as_repeated_texts": limited.repeats}
    if limited.dropped:
        found["left_out_by_dependency"] = limited.dropped
    if limited.by_document:
        found["left_out_by_document"] = limited.beyond_the_best
        found["passed_over_by_document"] = limited.passed_over
    return found | ({"could_not_be_filled": limited.unfilled} if limited.unfilled else {})


def _subset_figures(subset: pl.DataFrame, scores: pl.DataFrame, *, by_rank: bool) -> dict[str, Any]:
    """Return the first rows, the counts of selected and scored samples, the scores with the cut, and the sources.

    A choice that is not `by_rank` has no cut.
    """
    from gateau_dagster.small_charts import histogram

    lowest = min(subset["score"], default=None)
    cut: dict[str, Any] = {"cut": lowest, "cut_name": "lowest selected"} if by_rank else {}
    shown = subset.select("rank", "score", "source", "sample_id", "instruction", "response")
    return {
        "selected": subset.height,
        "scored": scores.height,
        "lowest_selected_score": lowest,
        "by_source": dict(subset["source"].value_counts(sort=True).iter_rows()),
        "sources": source_chart(subset["source"], "selected samples"),
        **dependency_figures(subset),
        "scores": chart(histogram(scores["score"].to_numpy(), name="score", **cut)),
        **preview(shown, rows=SHOWN),
    }


def dependency_figures(table: pl.DataFrame) -> dict[str, Any]:
    """Return the count of samples by dependency, a chart of the shares and the far one; empty without that column."""
    if "dependency" not in table.columns or table["dependency"].is_null().all():
        return {}
    counts = table["dependency"].drop_nulls().value_counts(sort=True)
    return {
        "by_dependency": dict(counts.iter_rows()),
        "dependencies": source_chart(table["dependency"], "samples"),
        "far_share": far_share(table["dependency"]),
    }


def with_texts(state: State, chosen: pl.DataFrame, progress: Progress) -> pl.DataFrame:
    """Return tables.SELECTED_SUBSET of the `chosen` samples (from `choice`); only their texts are kept in memory."""
    frames = []
    for done, shard in enumerate(state.shards, start=1):
        frames.append(state.store.read_rows(RAW, shard, chosen))
        progress(done, len(state.shards), "shards")
    return choose(chosen, pl.concat(frames, how="diagonal").lazy())


@makes_asset
def method_scores(step: Step) -> None:
    """Score the samples: shard by shard, or all at once with a method that needs the data set as a whole."""
    for done, output in enumerate(step.in_turn(), start=1):
        method = chosen_methods(step.state.config)[output.name]
        table, rejected = _method_scores(step.state, method, output.partition)
        output.write(table, rejected)
        output.metadata["without_score"] = table["score"].null_count()
        if output.partition is None:
            output.metadata |= first_histogram(table)
        else:
            step.progress(done, len(step.stale), "shards")


def _method_scores(state: State, method: Method, shard: str | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the scores of one shard or of all, and the samples without a score, with the reasons."""
    wanted = method.reads()
    found = {asset: state.read(asset, list(columns), shard) for asset, columns in wanted.items()}
    scores = method.scores(found)
    absent = state.read(RAW, ["sample_id"], shard).join(scores, on="sample_id", how="anti")
    reasons = [state.read_rejected(asset, shard) for asset in wanted if asset != RAW]
    return scores, with_reasons(absent, reasons).with_columns(
        pl.col("reason").fill_null(f"not in all of {', '.join(wanted)}")
    )


def _known_dependence(state: State) -> pl.DataFrame | None:
    if not has_evidence(state.config) or lacking_for_forecast(state) is not None:
        return None
    return dependence(state)
