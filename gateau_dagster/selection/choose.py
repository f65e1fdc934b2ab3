"""`selected_subset`: the best samples by rank."""

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import SelectionConfig
from gateau_dagster.errors import GateauError


def best(scores: pl.DataFrame, selection: SelectionConfig) -> pl.DataFrame:
    """`sample_id`, `score` and `rank` of the `fraction` or `count` of the scored samples that rank first, in order."""
    return scores.select("sample_id", "score", "rank").sort("rank").head(selection.chosen(scores.height))


def choose(scores: pl.DataFrame, raw: pl.LazyFrame, selection: SelectionConfig) -> pl.DataFrame:
    """tables.SELECTED_SUBSET, sorted by rank: the samples that rank first.

    `scores` is tables.COMBINED_SCORES, `raw` tables.RAW_LONG_SFT; only the chosen rows of `raw` are read. Raises
    GateauError when a chosen sample is not in `raw`.
    """
    chosen = best(scores, selection)
    found = chosen.lazy().join(raw, on="sample_id").collect()
    missing = chosen.join(found, on="sample_id", how="anti")["sample_id"].sort()
    if missing.len():
        raise GateauError(
            f"{missing.len()} chosen samples, {missing[0]} among them, are not in raw_long_sft any more: "
            "bring the scores up to date with `gateau run`"
        )
    return found.sort("rank").select(tables.schema(tables.SELECTED_SUBSET).names())
