"""Collect the further sections of the report: judged samples, pairs of answers, contamination, synthetic samples."""

import polars as pl

from gateau_dagster.evaluation.contamination import FAMILY, SHORT_FAMILY
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.pipeline.evaluation_assets import (
    CHARACTERISTICS,
    EXPERIMENT,
    PAIRS,
    UNTOUCHED_EXPERIMENT,
    asking_benchmarks,
)
from gateau_dagster.pipeline.losses import RAW
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.evidence_card import EvidenceMaps, evidence_maps
from gateau_dagster.report.further import (
    FurtherSection,
    characteristics_section,
    contamination_section,
    pairwise_section,
    shown_candidates,
    synthesis_section,
)
from gateau_dagster.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, QUESTIONS_TABLE


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
    if CHECKS_TABLE in reads:
        checked = state.read(CHECKS_TABLE).drop("probability")
        shown = shown_candidates(checked)
        found.append(synthesis_section(checked, _with_texts(state, shown), _maps(state, shown.filter("accepted"))))
    return found


def _with_texts(state: State, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return synthetic candidates with their texts; only their rows are read."""
    wanted = chosen.select("sample_id")
    parts = [str(part) for part in state.pipeline.partitions(CHECKS_TABLE)]
    asked, built = (
        pl.concat([state.store.read_rows(asset, part, wanted) for part in parts])
        for asset in (QUESTIONS_TABLE, CONTEXTS_TABLE)
    )
    texts = asked.select("sample_id", "question", "answer", "evidence")
    places = built.select("sample_id", "context", "positions")
    return chosen.join(texts, on="sample_id", how="left", maintain_order="left").join(
        places, on="sample_id", how="left", maintain_order="left"
    )


def _maps(state: State, accepted: pl.DataFrame) -> EvidenceMaps:
    """Return the evidence maps of accepted synthetic samples, if long_sft reads them."""
    if not state.config.reads_synthetic:
        return EvidenceMaps()
    parts = [state.store.read_rows(RAW, shard, accepted.select("sample_id")) for shard in state.shards]
    return evidence_maps(state, [*samples_of(pl.concat(parts, how="diagonal"))])


def contamination_of(state: State, benchmark: str) -> pl.DataFrame:
    """Return the overlaps of long samples and conversations with a benchmark's questions: overlaps.OVERLAPS."""
    families = [FAMILY, *([SHORT_FAMILY] if state.config.short_chat is not None else [])]
    return pl.concat([state.read(f"{family}/{benchmark}") for family in families])
