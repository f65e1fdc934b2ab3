"""Make the asset `comparison`: the methods side by side, as the report shows them."""

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.steps.metadata import amounts_chart, rows_table
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.comparison.compare import compare_methods
from gateau_dagster.comparison.result import AlphaSweep, AttentionSweep, MethodComparison, SegmentLengthSweep
from gateau_dagster.comparison.sweeps import alpha_sweep, attention_peaks, attention_sweep, segment_length_sweep
from gateau_dagster.config import PRESETS
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.pipeline.declarations import COMPARISON_FILE
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, compared_methods, comparison_reads
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress
from gateau_dagster.readable import PageAmount, PageChart
from gateau_dagster.scoring.pair_tables import cam_at_asset, cam_at_columns, further_lengths
from gateau_dagster.selection.combine import READ_COLUMNS
from gateau_dagster.storage.documents import write_document


@makes_asset
def comparison(step: Step) -> None:
    """Compute the agreement of the methods, what each prefers, and the sweeps over GATEAU's parameters."""
    for output in step.in_turn():
        found = compared(output.state, output.progress)
        write_document(output.state.store, COMPARISON_FILE, found.to_json(), output.wanted)
        selects = output.state.config.selection.method
        agreement = {pair.second: pair.spearman for pair in found.pairs if pair.first == selects}
        amounts = [PageAmount(name=name, value=value) for name, value in agreement.items() if value is not None]
        rows = [{"method": name, "spearman": value} for name, value in agreement.items()]
        output.finish(
            output.wanted,
            methods=len(found.methods),
            **amounts_chart(PageChart(name="rank correlation", amounts=amounts)),
            rank_correlations=rows_table(rows, {"method": "string", "spearman": "float"}),
        )


def compared(state: State, progress: Progress) -> MethodComparison:
    """Return the comparison, with the sweeps whose tables the pipeline makes anyway."""
    selection, reads = state.config.selection, comparison_reads(state.config)
    frame = method_frame(state, progress)
    candidates = frame
    if SPLIT in reads:  # reserved samples, which no method can choose
        split = state.read(SPLIT, ["sample_id", "reserved"])
        candidates = frame.join(split.filter("reserved"), on="sample_id", how="anti")
    chosen = state.read(CHOSEN, ["sample_id"]).height
    return compare_methods(
        candidates,
        compared_methods(state.config),
        chosen=chosen,
        selected_by=selection.method,
        ground_truth=selection.ground_truth,
        alpha=_alpha_sweep(state, candidates, chosen) if PRESETS_TABLE in reads else None,
        segment_length=_segment_length_sweep(state, candidates, chosen),
        attention=_attention_sweep(state) if {"cam", "perplexity/long"} <= {*reads} else None,
    )


def method_frame(state: State, progress: Progress) -> pl.DataFrame:
    """Return all samples with source, lengths and perplexity, and a column `score:<method>` per method."""
    frame = state.read("raw_long_sft", ["sample_id", "source"])
    methods = compared_methods(state.config)
    figures = tables.schema(tables.PERPLEXITY)
    columns = {name: figures[name] for name in ("sample_id", "context_tokens", "response_tokens", "perplexity")}
    known = pl.DataFrame(schema=columns)
    if "perplexity/long" in comparison_reads(state.config):
        known = state.read("perplexity/long", list(columns))
    frame = frame.join(known, on="sample_id", how="left")
    for done, chosen in enumerate(methods, start=1):
        scores = state.read(chosen.asset, ["sample_id", "score"])
        frame = frame.join(scores.rename({"score": f"score:{chosen.name}"}), on="sample_id", how="left")
        progress(done, len(methods), "methods")
    return frame.sort("sample_id")


def _alpha_sweep(state: State, candidates: pl.DataFrame, chosen: int) -> AlphaSweep:
    selection = state.config.selection
    columns = ["sample_id", *(f"{kind}_{preset}" for preset in PRESETS for kind in ("hmp", "cas"))]
    return alpha_sweep(
        state.read(PRESETS_TABLE, columns).join(candidates, on="sample_id", how="semi"),
        preset=selection.preset,
        alpha=selection.alpha,
        chosen=chosen,
        sources=candidates.select("sample_id", "source"),
        ground_truth=selection.ground_truth,
    )


def _segment_length_sweep(state: State, candidates: pl.DataFrame, chosen: int) -> SegmentLengthSweep | None:
    """Compare `cam` with the tables of other segment lengths; return None without any."""
    selection = state.config.selection
    made = {length: cam_at_asset(length) for length in further_lengths(state.config)}
    if not made:
        return None
    configured, columns = state.config.scoring.segment_length, [column.name for column in cam_at_columns(state.config)]
    made[configured] = "cam"
    short, long = (
        state.read(asset, READ_COLUMNS[asset]).join(candidates, on="sample_id", how="semi")
        for asset in ("perplexity/short", "perplexity/long")
    )
    return segment_length_sweep(
        short,
        long,
        {length: state.read(asset, columns) for length, asset in made.items()},
        configured=configured,
        preset=selection.preset,
        alpha=selection.alpha,
        chosen=chosen,
        sources=candidates.select("sample_id", "source"),
        ground_truth=selection.ground_truth,
    )


def _attention_sweep(state: State) -> AttentionSweep | None:
    """Compute the attention peaks shard by shard, since the lists of all samples would be large together."""
    length, peaks = state.config.scoring.segment_length, []
    for shard in state.shards:
        cam = state.store.read("cam", shard, ["sample_id", "segment_attention"])
        lengths = state.store.read("perplexity/long", shard, ["sample_id", "context_tokens"])
        peaks.append(attention_peaks(cam.join(lengths, on="sample_id"), segment_length=length))
    return attention_sweep(pl.concat(peaks), segment_length=length)
