"""How many samples fewer are chosen than asked for, since there are no more or a limit by document leaves no more."""

import polars as pl

from gateau_dagster.evaluation.document_split import SPLIT
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, ranking_asset
from gateau_dagster.pipeline.state import State


def unfilled(state: State) -> str:
    """A sentence about `selected_subset`, which is up to date; empty where it holds as many as are asked for."""
    rule = state.config.selection
    if rule.budget is not None:
        return ""
    found = state.read(CHOSEN, ["sample_id"]).height
    if rule.per_document is not None and found < (wanted := _wanted(state)):
        return f"{found:,} samples are chosen of {wanted:,} asked for: selection.per_document leaves no more"
    if rule.count is not None and found < rule.count:
        return f"{found:,} samples are chosen of {rule.count:,} that selection.count asks for: no more can be chosen"
    return ""


def _wanted(state: State) -> int:
    """Of the samples that have a score and are not reserved."""
    rule = state.config.selection
    ranking = ranking_asset(state.config)
    score = f"score_{rule.preset}" if ranking == PRESETS_TABLE else "score"
    scored = state.read(ranking, ["sample_id", score]).filter(pl.col(score).is_not_null())
    candidates = scored.join(state.read(SPLIT, ["sample_id", "reserved"]).filter(~pl.col("reserved")), on="sample_id")
    return rule.chosen(candidates.height)
