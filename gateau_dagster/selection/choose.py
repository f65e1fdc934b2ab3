"""`selected_subset`: the best samples by rank."""

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import SelectionConfig
from gateau_dagster.errors import GateauError


def choose(scores: pl.DataFrame, raw: pl.LazyFrame, selection: SelectionConfig) -> pl.DataFrame:
    """tables.SELECTED_SUBSET, sorted by rank: the `fraction` or `count` of the scored samples that rank first.

    `scores` is tables.COMBINED_SCORES, `raw` tables.RAW_LONG_SFT; only the chosen rows of `raw` are read. Raises
    GateauError when a chosen sample is not in `raw`.
    """
    best = scores.sort("rank").head(selection.chosen(scores.height)).select("sample_id", "score", "rank")
    wanted = best["sample_id"].to_list()
    found = raw.filter(pl.col("sample_id").is_in(wanted)).collect()
    missing = sorted(set(wanted) - set(found["sample_id"].to_list()))
    if missing:
        raise GateauError(
            f"{len(missing)} chosen samples, {missing[0]} among them, are not in raw_long_sft any more: "
            "bring the scores up to date with `gateau run`"
        )
    return found.join(best, on="sample_id").sort("rank").select(tables.schema(tables.SELECTED_SUBSET).names())
