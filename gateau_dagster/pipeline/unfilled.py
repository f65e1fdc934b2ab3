"""How many samples fewer are chosen than asked for, since a limit of samples by document leaves no more."""

import polars as pl

from gateau_dagster.evaluation.document_split import SPLIT
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, ranking_asset
from gateau_dagster.pipeline.state import State


def unfilled(state: State) -> str:
    """A sentence about `selected_subset`, which is up to date; empty where it holds as many as are asked for."""
    rule = state.config.selection
    if rule.per_document is None or rule.budget is not None:
        return ""
    ranking = ranking_asset(state.config)
    score = f"score_{rule.preset}" if ranking == PRESETS_TABLE else "score"
    scored = state.read(ranking, ["sample_id", score]).filter(pl.col(score).is_not_null())
    candidates = scored.join(state.read(SPLIT, ["sample_id", "reserved"]).filter(~pl.col("reserved")), on="sample_id")
    wanted, found = rule.chosen(candidates.height), state.read(CHOSEN, ["sample_id"]).height
    if found >= wanted:
        return ""
    return f"{found:,} samples are chosen of {wanted:,} asked for: selection.per_document leaves no more"
