"""What is left of a benchmark without the questions that stand in the data."""

from __future__ import annotations

import polars as pl

from gateau_dagster.evaluation.contamination.overlaps import NEAR


def touched(contamination: pl.DataFrame, *, least: float = 0.0) -> pl.DataFrame:
    """The questions that a sample has something in common with, by id.

    Columns: `question_id`, `samples` (how many), `share` and `similarity` (the largest).

    contamination: OVERLAPS, of all shards; of a part of the samples where only these were trained on. least: share of
    a question's n-grams below which it is not touched; near-duplicates are in any case.
    """
    close = contamination.filter((pl.col("share") >= least) | (pl.col("similarity") >= NEAR))
    return (
        close.group_by("question_id")
        .agg(samples=pl.col("sample_id").n_unique(), share=pl.max("share"), similarity=pl.max("similarity"))
        .sort("question_id")
    )


def without_touched(scores: pl.DataFrame, contamination: pl.DataFrame, *, least: float = 0.0) -> pl.DataFrame:
    """The rows of `scores` (tables.SCORES, or others with a `question_id`) whose questions stand in no sample.

    For values that are compared between variants `contamination` is that of all the data: each is then measured on
    the same questions. Arguments: see `touched`.
    """
    return scores.join(touched(contamination, least=least), on="question_id", how="anti", maintain_order="left")
