"""Assets `combined_scores` and `selected_subset`: the ranking of all samples, and the best of them."""

from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.global_steps import Made, materialise, write_global
from assets.metadata import figures_metadata
from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.incremental.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.selection.choose import choose
from gateau_dagster.selection.combine import combine, unscored
from gateau_dagster.storage import Stamp, Store
from resources.configuration import ConfigurationResource

SCORED = ("perplexity/short", "perplexity/long", "cam")


def combined_scores_asset() -> dg.AssetsDefinition:
    """Eq. 2 and Eq. 6, under the configured preset; the other presets' columns stand beside."""

    @global_asset(
        "combined_scores",
        columns=tables.COMBINED_SCORES,
        deps=["raw_long_sft", *SCORED],
        kinds={"polars"},
        description="HMP, CAS, final score and rank of every sample (Eq. 2 and 6) over the whole data set. Waits for "
        "all shards; loads no model.",
    )
    def combined_scores(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, "combined_scores", _combine)

    return combined_scores


def selected_subset_asset() -> dg.AssetsDefinition:
    """The influential samples."""

    @global_asset(
        "selected_subset",
        columns=tables.SELECTED_SUBSET,
        deps=["raw_long_sft", "combined_scores"],
        kinds={"parquet", "polars"},
        description="The samples with the highest scores, with their texts: what the model is trained on.",
    )
    def selected_subset(
        context: dg.AssetExecutionContext, configuration: ConfigurationResource
    ) -> dg.MaterializeResult:
        return materialise(context, configuration, "selected_subset", _select)

    return selected_subset


def _combine(state: State, stamp: Stamp, progress: Progress) -> Made:
    del progress  # seconds, whatever the size
    selection, store = state.config.selection, state.store
    short, long, cam = (store.read_all(asset, state.shards) for asset in SCORED)
    scores = combine(
        short,
        long,
        cam,
        preset=selection.preset,
        alpha=selection.alpha,
        segment_length=state.config.scoring.segment_length,
    )
    raw_ids = store.read_all("raw_long_sft", state.shards, ["sample_id"])
    rejected = unscored(raw_ids, scores, [store.read_rejected(asset, state.shards) for asset in SCORED])
    stamp, metadata = write_global(state, "combined_scores", stamp, scores, rejected)
    return stamp, metadata | _score_figures(state, scores)


def _score_figures(state: State, scores: pl.DataFrame) -> dict[str, Any]:
    from gateau_dagster.report.plots.scores import score_distributions, terms_scatter

    selection = state.config.selection
    chosen = selection.chosen(scores.height)
    return figures_metadata(
        {
            "score distributions": score_distributions(scores),
            "terms": terms_scatter(scores, preset=selection.preset, chosen=chosen),
        }
    )


def _select(state: State, stamp: Stamp, progress: Progress) -> Made:
    del progress
    scores = state.store.read("combined_scores")
    subset = choose(scores, _texts(state.store, state.shards, scores, state.config), state.config.selection)
    # What is trained on: an equal choice under other scores must not train again.
    content = text_digest(
        [text for row in subset.select("sample_id", "digest").sort("sample_id").rows() for text in row]
    )
    stamp, metadata = write_global(state, "selected_subset", replace(stamp, content=content), subset)
    by_source = subset.group_by("source").len().sort("len", descending=True)
    return stamp, metadata | {"by_source": dict(by_source.iter_rows())}


def _texts(store: Store, shards: list[str], scores: pl.DataFrame, config: Config) -> pl.LazyFrame:
    """The raw rows of the samples that can be chosen, shard by shard, so that the texts of the others are let go."""
    best = scores.sort("rank").head(config.selection.chosen(scores.height)).select("sample_id")
    frames = [store.read("raw_long_sft", shard).join(best, on="sample_id", how="semi") for shard in shards]
    return pl.concat(frames).lazy()
