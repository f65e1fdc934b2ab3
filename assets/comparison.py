"""Asset `comparison`: the methods side by side, as the report shows them."""

import dagster as dg
import polars as pl

from assets.definition import global_asset
from assets.methods import sharded_assets
from assets.unpartitioned_step import Made, materialise
from gateau_dagster import tables
from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.result import AlphaSweep, AttentionSweep, SegmentLengthSweep
from gateau_dagster.comparison.sweeps import alpha_sweep, attention_peaks, attention_sweep, segment_length_sweep
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.methods.cam_at import cam_at_asset, cam_at_columns, further_lengths
from gateau_dagster.pipeline.selection_nodes import CHOSEN, compared_methods, comparison_reads
from gateau_dagster.pipeline.state import COMPARISON_FILE, State
from gateau_dagster.progress import Progress
from gateau_dagster.selection.joining import COLUMNS
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import write_document
from resources.configuration import ConfigurationResource


def comparison_asset(config: Config) -> dg.AssetsDefinition:
    """Agreement of the methods, what each prefers, and the sweeps over GATEAU's parameters."""

    @global_asset(
        "comparison",
        deps=comparison_reads(config),
        sharded=sharded_assets(config),
        kinds={"polars"},
        description="How far the methods of selection.method and selection.compare agree, what each of them "
        "prefers, and what alpha and further segment lengths change, among as many samples as are chosen. Loads no "
        "model.",
    )
    def comparison(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
        return materialise(context, configuration, "comparison", make_comparison)

    return comparison


def make_comparison(state: State, stamp: Stamp, progress: Progress) -> Made:
    """Writes the comparison, with the sweeps whose tables are wanted anyway."""
    selection, compared = state.config.selection, compared_methods(state.config)
    reads = comparison_reads(state.config)
    frame = method_frame(state, progress)
    chosen = state.store.read(CHOSEN, columns=["sample_id"]).height
    found = compare_methods(
        frame,
        [each.method for each in compared],
        chosen=chosen,
        selected_by=selection.method,
        ground_truth=selection.ground_truth,
        alpha=_alpha_sweep(state, frame, chosen) if "combined_scores" in reads else None,
        segment_length=_segment_length_sweep(state, frame, chosen),
        attention=_attention_sweep(state) if {"cam", "perplexity/long"} <= {*reads} else None,
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
    compared = compared_methods(state.config)
    figures = tables.schema(tables.PERPLEXITY)
    columns = {name: figures[name] for name in ("sample_id", "context_tokens", "response_tokens", "perplexity")}
    known = pl.DataFrame(schema=columns)
    if "perplexity/long" in comparison_reads(state.config):
        known = store.read_all("perplexity/long", shards, list(columns))
    frame = frame.join(known, on="sample_id", how="left")
    for done, chosen in enumerate(compared, start=1):
        parts: list[str | None] = [*shards] if chosen.method.per_sample else [None]
        scores = pl.concat([store.read(chosen.asset, part, ["sample_id", "score"]) for part in parts])
        frame = frame.join(scores.rename({"score": f"score:{chosen.name}"}), on="sample_id", how="left")
        progress(done, len(compared), "methods")
    return frame.sort("sample_id")


def _alpha_sweep(state: State, frame: pl.DataFrame, chosen: int) -> AlphaSweep:
    selection = state.config.selection
    columns = ["sample_id", *(f"{kind}_{preset}" for preset in PRESETS for kind in ("hmp", "cas"))]
    return alpha_sweep(
        state.store.read("combined_scores", None, columns),
        preset=selection.preset,
        alpha=selection.alpha,
        chosen=chosen,
        sources=frame.select("sample_id", "source"),
        ground_truth=selection.ground_truth,
    )


def _segment_length_sweep(state: State, frame: pl.DataFrame, chosen: int) -> SegmentLengthSweep | None:
    """`cam` beside the tables of further lengths; None without any."""
    store, shards, selection = state.store, state.shards, state.config.selection
    made = {length: cam_at_asset(length) for length in further_lengths(state.config)}
    if not made:
        return None
    configured, columns = state.config.scoring.segment_length, [column.name for column in cam_at_columns(state.config)]
    made[configured] = "cam"
    short, long = (store.read_all(asset, shards, COLUMNS[asset]) for asset in ("perplexity/short", "perplexity/long"))
    return segment_length_sweep(
        short,
        long,
        {length: store.read_all(asset, shards, columns) for length, asset in made.items()},
        configured=configured,
        preset=selection.preset,
        alpha=selection.alpha,
        chosen=chosen,
        sources=frame.select("sample_id", "source"),
        ground_truth=selection.ground_truth,
    )


def _attention_sweep(state: State) -> AttentionSweep | None:
    """Shard by shard: the lists of all samples would be large together."""
    length, peaks = state.config.scoring.segment_length, []
    for shard in state.shards:
        cam = state.store.read("cam", shard, ["sample_id", "segment_attention"])
        lengths = state.store.read("perplexity/long", shard, ["sample_id", "context_tokens"])
        peaks.append(attention_peaks(cam.join(lengths, on="sample_id"), segment_length=length))
    return attention_sweep(pl.concat(peaks), segment_length=length)
