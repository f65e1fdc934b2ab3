"""Collect the further sections of the report: judged samples, pairwise comparisons of answers, contamination."""

import polars as pl

from gateau_dagster.evaluation.contamination import FAMILY, SHORT_FAMILY
from gateau_dagster.pipeline.evaluation_assets import (
    CHARACTERISTICS,
    EXPERIMENT,
    PAIRS,
    UNTOUCHED_EXPERIMENT,
    asking_benchmarks,
)
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.further import (
    FurtherSection,
    characteristics_section,
    contamination_section,
    pairwise_section,
)


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
    return found


def contamination_of(state: State, benchmark: str) -> pl.DataFrame:
    """Return the overlaps of long samples and conversations with a benchmark's questions: overlaps.OVERLAPS."""
    families = [FAMILY, *([SHORT_FAMILY] if state.config.short_chat is not None else [])]
    return pl.concat([state.read(f"{family}/{benchmark}") for family in families])
