"""Assets `combined_scores` and `selected_subset`: the ranking of all samples, and the best of them."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.metadata import figures_metadata
from assets.methods import sharded_assets
from assets.unpartitioned_step import Made, materialise, write_global
from gateau_dagster import tables
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.pipeline.selection_nodes import ranking_asset, selection_reads
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.selection.combine import choose, ranked, ranked_by_score, with_reasons
from gateau_dagster.selection.joining import COLUMNS, Joined, join_all, join_shard
from gateau_dagster.selection.rules import chosen_ids
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import rows_digest
from resources.configuration import ConfigurationResource

T = TypeVar("T")
RAW = "raw_long_sft"


def combined_scores_asset() -> dg.AssetsDefinition:
    """Eq. 2 and Eq. 6, under the configured preset; the other presets' columns stand beside."""

    @global_asset(
        "combined_scores",
        columns=tables.COMBINED_SCORES,
        deps=["raw_long_sft", *COLUMNS],
        kinds={"polars"},
        description="HMP, CAS, final score and rank of every sample (Eq. 2 and 6) over the whole data set. Waits for "
        "all shards; loads no model.",
    )
    def combined_scores(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, "combined_scores", make_scores)

    return combined_scores


def selected_subset_asset(config: Config) -> dg.AssetsDefinition:
    """The influential samples."""

    @global_asset(
        "selected_subset",
        columns=tables.SELECTED_SUBSET,
        deps=list(selection_reads(config)),
        sharded=sharded_assets(config),
        kinds={"parquet", "polars"},
        description="The samples with the highest scores, with their texts: what the model is trained on.",
    )
    def selected_subset(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, "selected_subset", make_subset)

    return selected_subset


def make_scores(state: State, stamp: Stamp, progress: Progress) -> Made:
    """Writes `combined_scores`: joined shard by shard, ranked as a whole."""
    selection = state.config.selection
    absent: list[pl.DataFrame] = []
    measures = join_all(_joined_shards(state, absent, progress))
    scores = ranked(measures, preset=selection.preset, alpha=selection.alpha)
    del measures
    reasons = [state.store.read_rejected(asset, state.shards) for asset in COLUMNS]
    rejected = with_reasons(pl.concat(absent), reasons)
    stamp, metadata = write_global(state, "combined_scores", stamp, scores, rejected)
    return stamp, metadata | _score_figures(state, scores)


def _joined_shards(state: State, absent: list[pl.DataFrame], progress: Progress) -> Iterator[Joined]:
    """Each shard's tables joined; the ids of its samples that some table lacks are added to `absent`."""
    for done, (raw_ids, found) in enumerate(_one_ahead(partial(_shard_tables, state), state.shards), start=1):
        joined = join_shard(found)
        absent.append(raw_ids.join(joined.frame, on="sample_id", how="anti"))
        progress(done, len(state.shards), "shards")
        yield joined


def _shard_tables(state: State, shard: str) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """The shard's ids, and what is read of the tables of its scores."""
    found = {name: state.store.read(name, shard, columns) for name, columns in COLUMNS.items()}
    return state.store.read("raw_long_sft", shard, ["sample_id"]), found


def _one_ahead(read: Callable[[str], T], shards: Sequence[str]) -> Iterator[T]:
    """What `read` gives for each shard; the next one is read while the caller works on this one."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, shards[0])
        for following in shards[1:]:
            ready, waiting = waiting.result(), pool.submit(read, following)
            yield ready
        yield waiting.result()


def _score_figures(state: State, scores: pl.DataFrame) -> dict[str, Any]:
    from gateau_dagster.report.plots.score_plots import score_distributions, terms_scatter

    selection = state.config.selection
    chosen = selection.chosen(scores.height)
    # Only the columns that are shown: each plot filters its table.
    each = scores.select(f"{kind}_{preset}" for preset in PRESETS for kind in ("score", "cas"))
    terms = scores.select(f"{kind}_{selection.preset}" for kind in ("hmp", "cas", "rank"))
    return figures_metadata(
        {
            "score distributions": score_distributions(each),
            "terms": terms_scatter(terms, preset=selection.preset, chosen=chosen),
        }
    )


def make_subset(state: State, stamp: Stamp, progress: Progress) -> Made:
    """Writes `selected_subset`; of the texts, only the chosen samples' are kept in memory."""
    chosen = _chosen(state)
    subset = choose(chosen, _texts(state, chosen, progress))
    # What is trained on: an equal choice under other scores must not train again.
    content = rows_digest(subset.select("sample_id", "digest").sort("sample_id"))
    stamp, metadata = write_global(state, "selected_subset", replace(stamp, content=content), subset)
    by_source = subset.group_by("source").len().sort("len", descending=True)
    return stamp, metadata | {"by_source": dict(by_source.iter_rows())}


def _chosen(state: State) -> pl.DataFrame:
    """`sample_id`, `score` and `rank` of the samples that the rule chooses."""
    selection, reads = state.config.selection, selection_reads(state.config)
    ranking = ranking_asset(state.config)
    scores = _read(state, ranking, reads[ranking])
    if ranking != "combined_scores":
        scores = ranked_by_score(scores)
    samples = _read(state, RAW, reads[RAW]).join(scores, on="sample_id", how="left")
    for asset in reads.keys() - {ranking, RAW}:
        samples = samples.join(_read(state, asset, reads[asset]), on="sample_id", how="left")
    if "context_tokens" in samples.columns:
        samples = samples.with_columns(tokens=pl.col("context_tokens") + pl.col("response_tokens"))
    ids = pl.DataFrame({"sample_id": chosen_ids(samples, selection)})
    return ids.join(scores, on="sample_id", maintain_order="left")


def _read(state: State, asset: str, columns: list[str]) -> pl.DataFrame:
    # Asked of the configuration: the planner would want the models' digests, which no global step needs.
    sharded = asset in {RAW, *COLUMNS} or asset in sharded_assets(state.config)
    parts: list[str | None] = [*state.shards] if sharded else [None]
    return pl.concat([state.store.read(asset, part, columns) for part in parts])


def _texts(state: State, chosen: pl.DataFrame, progress: Progress) -> pl.LazyFrame:
    """The raw rows of the chosen samples, read shard by shard."""
    frames = []
    for done, shard in enumerate(state.shards, start=1):
        frames.append(state.store.read_rows("raw_long_sft", shard, chosen))
        progress(done, len(state.shards), "shards")
    return pl.concat(frames).lazy()
