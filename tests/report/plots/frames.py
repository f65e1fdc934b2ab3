"""Small tables to plot."""

import polars as pl

from gateau_dagster.config import PRESETS


def scores(hmp: list[float | None], cas: list[float | None]) -> pl.DataFrame:
    """Combined scores where every preset has these terms, and the score and rank of their sum."""
    frame = pl.DataFrame({"h": hmp, "c": cas}, schema={"h": pl.Float64, "c": pl.Float64})
    total = pl.col("h") + pl.col("c").fill_null(-1.0)
    columns = {"context_tokens": pl.int_range(1, pl.len() + 1)}
    for preset in PRESETS:
        columns |= {f"hmp_{preset}": pl.col("h"), f"cas_{preset}": pl.col("c"), f"score_{preset}": total}
        columns |= {f"rank_{preset}": total.rank("ordinal", descending=True)}
    return frame.select(**columns)
