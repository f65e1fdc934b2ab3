"""`selected_subset`: ranks from a method's scores, and the chosen samples with their texts."""

import polars as pl

from gateau_dagster import tables
from gateau_dagster.errors import GateauError


def ranked_by_score(scores: pl.DataFrame) -> pl.DataFrame:
    """`sample_id`, `score` and `rank` (i32, 1 is the best) of the samples with a score; ties break by sample_id.

    Raises GateauError when there is none.
    """
    known = scores.select("sample_id", "score").filter(pl.col("score").is_not_null())
    if not known.height:
        raise GateauError(
            "the method of selection.method has no score for any sample, so that none can be chosen: its table and the "
            "rejected tables before it give the reasons"
        )
    ordered = known.sort("score", "sample_id", descending=[True, False])
    return ordered.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))


def choose(chosen: pl.DataFrame, raw: pl.LazyFrame) -> pl.DataFrame:
    """tables.SELECTED_SUBSET, sorted by rank: the `chosen` samples (`sample_id`, `score`, `rank`) with their texts.

    `raw` is tables.RAW_LONG_SFT; only the chosen rows of it are read. Raises GateauError when a chosen sample is not
    in it.
    """
    found = chosen.lazy().join(raw, on="sample_id").collect()
    missing = chosen.join(found, on="sample_id", how="anti")["sample_id"].sort()
    if missing.len():
        raise GateauError(
            f"{missing.len()} chosen samples, {missing[0]} among them, are not in raw_long_sft any more: "
            "bring the scores up to date with `gateau run`"
        )
    return found.sort("rank").select(tables.schema(tables.SELECTED_SUBSET).names())
