"""Make the asset `evidence`: the segments that each response depends on; no model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.assets.selection import dependency_figures
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.assets.training_mix import mix_tokenizer
from gateau_dagster.data.sample import Sample
from gateau_dagster.pipeline.selection_reads import EVIDENCE_READS
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.evidence import CAM_COLUMNS, PERPLEXITY_COLUMNS, EvidenceRows
from gateau_dagster.report.evidence import evidence as evidence_map
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, perplexity_asset
from gateau_dagster.selection.combine import with_reasons
from gateau_dagster.selection.evidence import dependencies

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


def _evidence(state: State, shard: str | None, tokenizer: PreTrainedTokenizerBase) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return tables.EVIDENCE of a shard, and the samples that are missing from a table, with the reasons."""
    raw = state.store.read(RAW, shard)
    found = {
        asset: state.store.read(asset, shard, [*dict.fromkeys((*columns, *_BESIDE[asset]))])
        for asset, columns in EVIDENCE_READS.items()
    }
    depends = raw.select("sample_id", "digest").join(
        dependencies(found[CAM], found[LONG]), on="sample_id", maintain_order="left"
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
    state: State, samples: pl.DataFrame, found: Mapping[str, pl.DataFrame], tokenizer: PreTrainedTokenizerBase
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
