"""Choose a recipe's samples from the tables, and forecast what training on them changes; no model runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.selection import RuleConfig, SelectionConfig
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.execution.shard_tables import rejected_frame
from gateau_dagster.methods.method import Reads
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.losses import check_some_scored
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.selection_reads import (
    CHOSEN,
    EVIDENCE,
    EVIDENCE_READS,
    FORECAST_COLUMNS,
    PRESETS_TABLE,
    TRIM_READS,
    ranking_asset,
)
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, perplexity_asset
from gateau_dagster.selection.clusters import with_clusters
from gateau_dagster.selection.combine import ranked_by_score
from gateau_dagster.selection.evidence import dependencies, token_sums
from gateau_dagster.selection.forecast import PRIOR, VERDICTS, Forecast, Slopes, choice_warnings, decided, forecast
from gateau_dagster.selection.rules import LeftOut, chosen_ids, left_out
from gateau_dagster.selection.token_budget import equal_amount
from gateau_dagster.selection.trim import trim_figures, trims

RAW, LONG = "raw_long_sft", perplexity_asset(THETA_B)


LEAST_RESPONSE_SHARE = 0.5
"""The share of response tokens, relative to the share of samples, below which the check `response_share` warns.

Random samples have 1 on average. At a half, training learns from as many tokens as half as many random samples hold.
"""


@dataclass(frozen=True, kw_only=True)
class ResponseShare:
    """The chosen ones among the samples that theta_B reads, and their response tokens, which training learns from."""

    chosen: int
    samples: int
    chosen_tokens: int
    tokens: int

    @property
    def share(self) -> float:
        """Return the share of response tokens that the chosen samples hold, in [0, 1]."""
        return self.chosen_tokens / max(1, self.tokens)

    @property
    def is_small(self) -> bool:
        """Return whether it is below LEAST_RESPONSE_SHARE of the share of samples."""
        return self.share < LEAST_RESPONSE_SHARE * self.chosen / max(1, self.samples)

    @property
    def sentence(self) -> str:
        """Return both shares in words."""
        return (
            f"{self.chosen:,} of {plural(self.samples, 'sample')} ({percentage(self.chosen / max(1, self.samples))}) "
            f"hold {self.chosen_tokens:,} of {self.tokens:,} response tokens ({percentage(self.share)}), which "
            "training learns from"
        )


def response_share(state: State, chosen: pl.DataFrame | None = None) -> ResponseShare | None:
    """Return how many response tokens the chosen samples hold.

    `chosen`: `sample_id`; by default that of `selected_subset`. None if theta_B has not counted, or nothing is chosen.
    """
    made = [LONG] if chosen is not None else [LONG, CHOSEN]
    if not {*made} <= state.pipeline.required or _lacking(state, made) is not None:
        return None
    chosen = state.store.read(CHOSEN, columns=["sample_id"]) if chosen is None else chosen
    counts = state.read(LONG, ["sample_id", "response_tokens"])
    of_chosen = counts.join(chosen, on="sample_id", how="semi")
    chosen_tokens, tokens = (int(each["response_tokens"].sum()) for each in (of_chosen, counts))
    return ResponseShare(chosen=of_chosen.height, samples=counts.height, chosen_tokens=chosen_tokens, tokens=tokens)


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
    state: State,
    recipe: Recipe,
    depends: pl.DataFrame | None = None,
    candidates: "Candidates | None" = None,
    scores: pl.DataFrame | None = None,
) -> Choice:
    """Return the choice of a recipe.

    Args:
        state: the tables.
        recipe: the single run's, or a variant's.
        depends: from `dependence`, which `auto` reads if it is not given.
        candidates: those of several recipes, so that tables are read once.
        scores: `sample_id`, `score` and `rank` of a recipe that selects by scores, in place of those in the store.
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
    elif scores is None:
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
        samples = self._columns.hstack(scored)  # which copies no column
        if recipe.selection.budget_unit == "response tokens":
            return samples.with_columns(tokens="response_tokens")
        return with_trained_tokens(self._state, recipe, samples)


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


def trimmed_samples(state: State, config: Config) -> pl.DataFrame:
    """Return `sample_id` and `shown_tokens`: contexts that training cuts, and what stays, see selection.trim.trims."""
    tables_of = (
        [state.store.read(asset, shard, [*columns]) for asset, columns in TRIM_READS.items()] for shard in state.shards
    )
    figures = pl.concat(trim_figures(cam, long, short) for cam, long, short in tables_of)
    return trims(figures, seed=config.training.seed)


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


def warnings_of_choice(recipe: Recipe, found: Forecast, depends: pl.DataFrame, chosen: pl.DataFrame) -> list[str]:
    """Return `choice_warnings` of a recipe's `chosen` samples (`sample_id`).

    `found`: its forecast. `depends`: from `dependence`.
    """
    kinds = chosen.join(depends, on="sample_id", how="left")["dependency"]
    has_chats = recipe.project.short_chat is not None
    return choice_warnings(recipe.selection, kinds, far=found.far, has_chats=has_chats)


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
        parts.append(dependence_of(cam, long).select(FORECAST_COLUMNS))
    return pl.concat(parts)


def dependence_of(cam: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Return `selection.evidence.dependencies` with `response_tokens` and `token_sums`, from EVIDENCE_READS."""
    sums = long.select("sample_id", "response_tokens").join(token_sums(cam, long), on="sample_id")
    return dependencies(cam, long).join(sums, on="sample_id", maintain_order="left")


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
