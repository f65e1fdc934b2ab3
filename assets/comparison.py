"""Asset `comparison`: the methods side by side, as the report shows them."""

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.global_steps import Made, materialise
from assets.methods import sharded_assets
from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.segment_length import attention_peaks, attention_sweep
from gateau_dagster.comparison.sweep_results import AlphaSweep, AttentionSweep
from gateau_dagster.comparison.sweeps import alpha_sweep
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.incremental.selection_nodes import compared_methods
from gateau_dagster.incremental.state import COMPARISON_FILE, State
from gateau_dagster.progress import Progress
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import write_document
from resources.configuration import ConfigurationResource


def comparison_asset(config: Config) -> dg.AssetsDefinition:
    """Agreement of the methods, what each prefers, and the sweeps over GATEAU's parameters."""
    scores = [chosen.asset for chosen in compared_methods(config)]

    @global_asset(
        "comparison",
        deps=["raw_long_sft", "perplexity/long", "cam", "combined_scores", *scores],
        sharded=sharded_assets(config),
        kinds={"polars"},
        description="How far the methods of selection.method and selection.compare agree, what each of them "
        "prefers, and what alpha changes. Loads no model.",
    )
    def comparison(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        return materialise(context, configuration, "comparison", _make)

    return comparison


def _make(state: State, stamp: Stamp, progress: Progress) -> Made:
    selection, compared = state.config.selection, compared_methods(state.config)
    frame = method_frame(state, progress)
    chosen = selection.chosen(frame.height)
    found = compare_methods(
        frame,
        [each.method for each in compared],
        chosen=chosen,
        selected_by=selection.method,
        ground_truth=selection.ground_truth,
        alpha=_alpha_sweep(state, frame, chosen),
        attention=_attention_sweep(state),
    )
    write_document(state.store, COMPARISON_FILE, found.to_json(), stamp)
    agreement = {
        f"spearman with {pair.second}": pair.spearman for pair in found.pairs if pair.first == selection.method
    }
    return stamp, {name: value for name, value in agreement.items() if value is not None}


def method_frame(state: State, progress: Progress) -> pl.DataFrame:
    """All samples with their source, lengths and perplexity, and a column `score:<method>` for each method."""
    store, shards = state.store, state.shards
    frame = store.read_all("raw_long_sft", shards, ["sample_id", "source"])
    columns = ["sample_id", "context_tokens", "response_tokens", "perplexity"]
    frame = frame.join(store.read_all("perplexity/long", shards, columns), on="sample_id", how="left")
    compared = compared_methods(state.config)
    for done, chosen in enumerate(compared, start=1):
        parts: list[str | None] = [*shards] if chosen.method.per_sample else [None]
        scores = pl.concat([store.read(chosen.asset, part, ["sample_id", "score"]) for part in parts])
        frame = frame.join(scores.rename({"score": f"score:{chosen.name}"}), on="sample_id", how="left")
        progress(done, len(compared), "methods")
    return frame.sort("sample_id")


def _alpha_sweep(state: State, frame: pl.DataFrame, chosen: int) -> AlphaSweep:
    selection = state.config.selection
    columns = ["sample_id", *(f"{kind}_{preset}" for preset in PRESETS for kind in ("hmp", "cas"))]
    combined = state.store.read("combined_scores", None, columns)
    combined = combined.join(frame.select("sample_id", "source"), on="sample_id", how="left")
    return alpha_sweep(
        combined, preset=selection.preset, alpha=selection.alpha, chosen=chosen, ground_truth=selection.ground_truth
    )


def _attention_sweep(state: State) -> AttentionSweep | None:
    """Shard by shard: the lists of all samples would be large together."""
    length, peaks = state.config.scoring.segment_length, []
    for shard in state.shards:
        cam = state.store.read("cam", shard, ["sample_id", "segment_attention"])
        lengths = state.store.read("perplexity/long", shard, ["sample_id", "context_tokens"])
        peaks.append(attention_peaks(cam.join(lengths, on="sample_id"), segment_length=length))
    return attention_sweep(pl.concat(peaks), segment_length=length)
