"""Rank and choose the samples: `evidence`, `combined_scores`, `method_scores/<method>` and `selected_subset`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from gateau_dagster.assets.training_mix import mix_tokenizer, trimmed_samples
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.config.selection import DRAWING, RuleConfig, SelectionConfig
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.explanation.evidence import CAM_COLUMNS, PERPLEXITY_COLUMNS, EvidenceRows
from gateau_dagster.explanation.evidence import evidence as evidence_map
from gateau_dagster.methods.method import Method, Reads
from gateau_dagster.methods.registry import chosen_methods, reads_attention
from gateau_dagster.pipeline.losses import check_some_scored
from gateau_dagster.pipeline.recipes import Recipe, recipe_of
from gateau_dagster.pipeline.selection_reads import (
    EVIDENCE,
    EVIDENCE_READS,
    FORECAST_COLUMNS,
    PRESETS_TABLE,
    has_evidence,
    ranking_asset,
)
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, perplexity_asset
from gateau_dagster.selection.clusters import with_clusters
from gateau_dagster.selection.combine import (
    READ_COLUMNS,
    JoinedShard,
    check_observed,
    choose,
    join_all,
    join_shard,
    ranked,
    ranked_by_score,
    with_reasons,
)
from gateau_dagster.selection.evidence import dependencies, far_share, token_sums
from gateau_dagster.selection.forecast import (
    PRIOR,
    VERDICTS,
    Forecast,
    Slopes,
    choice_warnings,
    decided,
    forecast,
)
from gateau_dagster.selection.rules import BY_RULE, DROPPED, LeftOut, chosen_ids, left_out
from gateau_dagster.selection.token_budget import equal_amount
from gateau_dagster.selection.wording import forecast_lines, forecast_record, short_lines
from gateau_dagster.storage.content import rows_digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


RAW, LONG = "raw_long_sft", perplexity_asset(THETA_B)
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
        dependencies(found[CAM], found[LONG]), on="sample_id", maintain_order="left"
    )
    depends = depends.join(_sums(found[CAM], found[LONG]), on="sample_id", maintain_order="left")
    spans = pl.Series("evidence", [None] * depends.height, dtype=tables.SPANS)
    if tokenizer.is_fast:
        samples = raw.join(depends.select("sample_id", "segments"), on="sample_id", maintain_order="left")
        spans = pl.Series("evidence", [*_spans(state, samples, found, tokenizer)], dtype=tables.SPANS)
    absent = raw.select("sample_id").join(depends, on="sample_id", how="anti")
    rejected = with_reasons(absent, [state.read_rejected(asset, shard) for asset in found])
    table = depends.with_columns(spans).select(tables.schema(tables.EVIDENCE).names())
    return table, rejected.with_columns(pl.col("reason").fill_null(f"not in all of {', '.join(found)}"))


def _sums(cam: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    return long.select("sample_id", "response_tokens").join(token_sums(cam, long), on="sample_id")


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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The samples that a recipe chooses, and from what.

    chosen, scores: `sample_id`, `score` and `rank` of the chosen samples and of all. candidates: see `Candidates`;
    empty if the recipe does not select by scores. left_out: see LeftOut. taken: the `rule` that chose, as metadata; for
    `auto` it is the one that it takes, with the reason.
    """

    chosen: pl.DataFrame
    scores: pl.DataFrame
    candidates: pl.DataFrame
    left_out: LeftOut
    taken: dict[str, str]


def chosen_samples(
    state: State, recipe: Recipe, depends: pl.DataFrame | None = None, candidates: "Candidates | None" = None
) -> Choice:
    """Return the choice of a recipe.

    Args:
        state: the tables.
        recipe: the single run's, or a variant's.
        depends: from `dependence`, which `auto` reads if it is not given.
        candidates: those of several recipes, so that tables are read once.
    """
    none = pl.DataFrame(schema={"sample_id": pl.String()})
    if recipe.variant.kind == "full":
        chosen, scores, left = _all(state, recipe)
        return Choice(chosen=chosen, scores=scores, candidates=none, left_out=left, taken={})
    if recipe.variant.kind != "selected":
        left = LeftOut(rows=rejected_frame([]), dropped=0, repeats=0, by_document=False, passed_over=0, unfilled=0)
        return Choice(chosen=none, scores=none, candidates=none, left_out=left, taken={})
    config = recipe.config
    if recipe.draws_lots:
        method = chosen_methods(config)[config.selection.method]
        found = {asset: state.read(asset, [*columns]) for asset, columns in method.reads().items()}
        scores = ranked_by_score(method.scores(found))
    else:
        scores = ranking_scores(state, config)
    samples = (candidates or Candidates(state)).of(recipe, scores)
    rule = equal_amount(config.selection, recipe.equal, samples)
    reason = {}
    if rule.rule == "auto":
        sums = dependence(state) if depends is None else depends
        rule, prediction = decided(samples, rule, sums, trains_other=recipe.trains_other)
        verdict = f"{VERDICTS[prediction.verdict]} ({'; '.join(prediction.reasons)})"
        reason = {"rule_reason": f"auto; the forecast for mix is: {verdict}"}
    chosen = choice(samples, scores, rule)
    return Choice(
        chosen=chosen,
        scores=scores,
        candidates=samples,
        left_out=left_out(samples, rule, chosen["sample_id"].to_list()),
        taken={"rule": rule.rule} | reason,
    )


def counted_rule(state: State, recipe: Recipe) -> SelectionConfig:
    """Return how a recipe's samples are chosen, without `variants.equal`: with the amount that this makes of a
    fraction.
    """
    no_scores = pl.DataFrame(schema={"sample_id": pl.String()})
    return equal_amount(recipe.selection, recipe.equal, Candidates(state).of(recipe, no_scores))


def _all(state: State, recipe: Recipe) -> tuple[pl.DataFrame, pl.DataFrame, LeftOut]:
    """Return every unreserved sample, one of each text, with score 0 and ranks in the order of ids."""
    samples = state.read(RAW, recipe.reads[RAW]).sort("sample_id")
    if SPLIT in recipe.reads:
        split = state.read(SPLIT, recipe.reads[SPLIT])
        samples = samples.join(split.filter("reserved"), on="sample_id", how="anti", maintain_order="left")
    if shows_use := recipe.project.selection.use_sources:
        samples = samples.filter(~pl.col("source").is_in(shows_use))
    samples = samples.with_columns(score=pl.lit(0.0), rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    every = RuleConfig(fraction=1.0, duplicates=recipe.project.selection.duplicates)
    scores = samples.select("sample_id", "score", "rank")
    chosen = choice(samples, scores, every)
    return chosen, scores, replace(left_out(samples, every, chosen["sample_id"].to_list()), unfilled=0)


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


def ranking_scores(state: State, config: Config) -> pl.DataFrame:
    """Return `sample_id`, `score` and `rank` under a configuration: that of the state, or of one of its variants.

    Raises:
        GateauError: no sample has a score.
    """
    ranking, preset = ranking_asset(config), config.selection.preset
    check_some_scored(state, ranking)
    if ranking != PRESETS_TABLE:
        return ranked_by_score(state.read(ranking, ["sample_id", "score"]))
    columns = {f"score_{preset}": "score", f"rank_{preset}": "rank"}
    return state.read(ranking, ["sample_id", *columns]).rename(columns)


class Candidates:
    """The samples that recipes may choose from, without reserved ones.

    Recipes that read the same columns one after the other share them: memory holds the columns of one.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._reads: Reads = {}
        self._columns = pl.DataFrame()

    def of(self, recipe: Recipe, scores: pl.DataFrame) -> pl.DataFrame:
        """Return the candidates of a recipe with these scores, in the form that `chosen_ids` reads."""
        if recipe.rule_reads != self._reads:
            self._columns = pl.DataFrame()  # first, so that there are never those of two recipes
            self._columns, self._reads = _candidate_columns(self._state, recipe.rule_reads), recipe.rule_reads
        ids = self._columns.select("sample_id")
        scored = ids.join(scores, on="sample_id", how="left", maintain_order="left").drop("sample_id")
        return with_trained_tokens(self._state, recipe, self._columns.hstack(scored))  # which copies no column


def _candidate_columns(state: State, reads: Reads) -> pl.DataFrame:
    """Return the columns beside the scores; `reads`: by asset, with those of raw_long_sft."""
    samples = state.read(RAW, [*reads[RAW]])
    for asset in reads.keys() - {RAW}:
        samples = samples.join(state.read(asset, [*reads[asset]]), on="sample_id", how="left")
    if SPLIT in reads:
        samples = samples.filter(~pl.col("reserved"))
    if "context_tokens" in samples.columns:
        samples = samples.with_columns(tokens=pl.col("context_tokens") + pl.col("response_tokens"))
    return samples


def with_trained_tokens(state: State, recipe: Recipe, samples: pl.DataFrame) -> pl.DataFrame:
    """Return candidates with the `tokens` that `training.trim` leaves of them; unchanged if no tokens are counted.

    Under template chat, samples of several exchanges stay whole.
    """
    if not recipe.counts_trimmed:
        return samples
    cut = trimmed_samples(state, recipe.config)
    if recipe.config.scoring.template == "chat":
        for shard in state.shards:
            if "conversation" in state.store.columns(RAW, shard):
                several = state.store.read(RAW, shard, ["sample_id", "conversation"]).drop_nulls()
                cut = cut.join(several, on="sample_id", how="anti")
    left = pl.coalesce(pl.col("shown_tokens") + pl.col("response_tokens"), "tokens")
    return samples.join(cut, on="sample_id", how="left", maintain_order="left").with_columns(tokens=left)


def choice(samples: pl.DataFrame, scores: pl.DataFrame, rule: RuleConfig) -> pl.DataFrame:
    """Return `sample_id`, `score` and `rank` of the candidates (`samples`) that the rule chooses."""
    ids = pl.DataFrame({"sample_id": chosen_ids(samples, rule)})
    return ids.join(scores, on="sample_id", maintain_order="left")


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


def warnings_of_choice(recipe: Recipe, found: Forecast, depends: pl.DataFrame, chosen: pl.DataFrame) -> list[str]:
    """Return `choice_warnings` of a recipe's `chosen` samples (`sample_id`).

    `found`: its forecast. `depends`: from `dependence`.
    """
    kinds = chosen.join(depends, on="sample_id", how="left")["dependency"]
    has_chats = recipe.project.short_chat is not None
    return choice_warnings(recipe.selection, kinds, far=found.far, has_chats=has_chats)


def forecast_of(
    state: State,
    recipe: Recipe,
    depends: pl.DataFrame,
    made: Choice | None = None,
    *,
    slopes: Slopes = PRIOR,
) -> Forecast:
    """Return the forecast for the choice of a recipe that selects by scores; no model runs.

    Args:
        state: the tables.
        recipe: the single run's, or a variant's.
        depends: from `dependence`.
        made: from `chosen_samples`; None: the rule chooses now.
        slopes: see selection.forecast.

    Raises:
        GateauError: the data cannot satisfy the rule, or a table is missing.
    """
    made = made or chosen_samples(state, recipe, depends)
    samples, chosen = made.candidates, made.chosen
    rule = equal_amount(recipe.selection, recipe.equal, samples)
    of_samples = depends.select("sample_id", "dependency", "response_tokens")
    samples = samples.drop("dependency", "response_tokens", strict=False).join(of_samples, on="sample_id", how="left")
    samples = samples.filter(pl.col("response_tokens").is_not_null())
    samples = _with_response_clusters(state, samples, rule)
    ids = chosen["sample_id"].to_list()
    truth = recipe.project.selection.ground_truth
    return forecast(
        samples,
        rule,
        depends,
        chosen=ids,
        slopes=slopes,
        trains_other=recipe.trains_other,
        ground_truth=truth,
    )


_MOST_CLUSTERED = 20_000
"""Candidates above which clusters take longer than all else of a forecast."""


def _with_response_clusters(state: State, samples: pl.DataFrame, rule: SelectionConfig) -> pl.DataFrame:
    """Return `samples` with `cluster`, if there are not too many and a table has their embeddings."""
    if not 2 <= samples.height <= _MOST_CLUSTERED:
        return samples
    if "embedding" not in samples.columns:
        made = (key for key in state.pipeline.required if key.startswith("embedding/"))
        asset = next((key for key in made if _lacking(state, [key]) is None), None)
        if asset is None:
            return samples
        embedded = state.read(asset, ["sample_id", "embedding"])
        samples = samples.join(embedded, on="sample_id", how="left")
    embedded = samples.filter(pl.col("embedding").is_not_null())
    if embedded["embedding"].n_unique() < max(2, embedded.height // 2):  # k-means needs different ones
        return samples
    clusters = with_clusters(embedded, rule if rule.rule == "diverse" else RuleConfig())
    return samples.join(clusters, on="sample_id", how="left")


def dependence(state: State) -> pl.DataFrame:
    """Return FORECAST_COLUMNS of each sample in both `cam` and `perplexity/long`.

    A shard's rows are read from `evidence` if that is up to date. Else they are computed from the tokens' columns.

    Raises:
        GateauError: a table is missing, with what to do.
    """
    if (lacking := lacking_for_forecast(state)) is not None:
        raise GateauError("forecast.tables", lacking)
    summed, parts = _shards_with_sums(state), []
    for shard in state.shards:
        if shard in summed:
            parts.append(state.store.read(EVIDENCE, shard, [*FORECAST_COLUMNS]))
            continue
        cam, long = (state.store.read(asset, shard, [*columns]) for asset, columns in EVIDENCE_READS.items())
        parts.append(dependencies(cam, long).join(_sums(cam, long), on="sample_id").select(FORECAST_COLUMNS))
    return pl.concat(parts)


def _shards_with_sums(state: State) -> set[str]:
    """Return the shards of `evidence` that are made from the tables in the store."""
    if EVIDENCE not in state.pipeline.by_key:
        return set()
    declared = state.asset(EVIDENCE)
    stamps = state.stamps((asset, shard) for asset in (EVIDENCE, *declared.reads) for shard in state.shards)
    current = set()
    for shard in state.shards:
        made_of = {asset: stamp.fingerprint for asset in declared.reads if (stamp := stamps[asset, shard]) is not None}
        is_whole = made_of.keys() == declared.reads.keys()
        if is_whole and declared.is_current(stamps[EVIDENCE, shard], declared.fingerprint(made_of)):
            current.add(shard)
    return current


def _known_dependence(state: State) -> pl.DataFrame | None:
    if not has_evidence(state.config) or lacking_for_forecast(state) is not None:
        return None
    return dependence(state)


def lacking_for_forecast(state: State) -> str | None:
    """Return which table a forecast of the single run's choice lacks, and what makes it; None if there are all."""
    if not {CAM, LONG} <= {*state.pipeline.required}:
        return (
            f"the forecast reads {CAM} and {LONG}, which no configured method makes: add gateau to selection.compare, "
            f"then run `{gateau_command('run --until selected_subset')}`"
        )
    reads = Recipe(state.config).rule_reads
    return _lacking(state, [*dict.fromkeys([RAW, CAM, LONG, ranking_asset(state.config), *reads])])


def _lacking(state: State, assets: Sequence[str]) -> str | None:
    stamps = state.table_stamps((asset, part) for asset in assets for part in state.pipeline.partitions(asset))
    absent = [asset if part is None else f"{asset}[{part}]" for (asset, part), stamp in stamps.items() if stamp is None]
    if not absent:
        return None
    more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
    return (
        f"the store has no {absent[0]}{more} yet: run `{gateau_command('run --until selected_subset')}`, which scores "
        "the samples and trains nothing"
    )
