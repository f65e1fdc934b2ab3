"""What a training mix holds: how many sequences and tokens, how many of them are learned, how long they are."""

from typing import Any

import polars as pl

from gateau_dagster.training.encode import IGNORED


def mix_sequences(mix: pl.DataFrame) -> pl.DataFrame:
    """One line a sequence of the mix (tables.TRAINING_MIX): `sample_id`, `origin`, `source`, and in tokens, int64,
    `tokens`, `trained_tokens` (those with loss) and `truncated_tokens`."""
    tokens = pl.col("input_ids").list.len().cast(pl.Int64)
    return mix.select(
        "sample_id",
        "origin",
        "source",
        tokens.alias("tokens"),
        (tokens - pl.col("labels").list.count_matches(IGNORED)).alias("trained_tokens"),
        pl.col("truncated_tokens").cast(pl.Int64),
    )


def by_source(sequences: pl.DataFrame) -> pl.DataFrame:
    """Figures of each origin and source, most tokens first.

    Args:
        sequences: see `mix_sequences`.

    Returns:
        `origin`, `source`, `sequences`, `samples` (fewer where a weight repeats them), `tokens`, `trained_tokens`,
        `truncated` (sequences), `median` and `longest` (tokens of a sequence).
    """
    figures = sequences.group_by("origin", "source").agg(
        pl.len().alias("sequences"),
        pl.col("sample_id").n_unique().alias("samples"),
        pl.col("tokens").sum(),
        pl.col("trained_tokens").sum(),
        (pl.col("truncated_tokens") > 0).sum().alias("truncated"),
        pl.col("tokens").median().cast(pl.Int64).alias("median"),
        pl.col("tokens").max().alias("longest"),
    )
    return figures.sort("tokens", "origin", "source", descending=[True, False, False])


def mix_summary(sequences: pl.DataFrame) -> dict[str, Any]:
    """Figures of the whole mix. `sequences`: see `mix_sequences`, at least one."""
    tokens = sequences["tokens"]
    total, trained = int(tokens.sum()), int(sequences["trained_tokens"].sum())
    return {
        "sequences": dict(sequences.group_by("origin").len().sort("origin").iter_rows()),
        "tokens": total,
        "trained_tokens": trained,
        "trained_share": trained / total,
        "truncated_sequences": int((sequences["truncated_tokens"] > 0).sum()),
        "truncated_tokens": int(sequences["truncated_tokens"].sum()),
        "tokens of a sequence": {
            name: round(tokens.quantile(share, "nearest") or 0)
            for name, share in (("10 %", 0.1), ("50 %", 0.5), ("90 %", 0.9), ("longest", 1.0))
        },
    }
