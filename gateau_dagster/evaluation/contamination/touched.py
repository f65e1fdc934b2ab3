"""What is left of a benchmark without the questions that stand in the data."""

from __future__ import annotations

import polars as pl

from gateau_dagster.evaluation.contamination.asked_texts import NEAR

# Raise it when the same overlaps touch other questions.
CODE_VERSION = "1"
LEAST_SHARE = 0.05
"""Share of a question's n-grams that is no mere wording, however many samples have as much."""
MOST_SAMPLES = 10
"""What more samples than these have of a question, less than LEAST_SHARE each, is the wording of many texts, such as
the frame of a web page (after Brown et al., 2020, appendix C, who leave out n-grams of more than ten documents)."""


def touched(
    contamination: pl.DataFrame, *, least: float = LEAST_SHARE, most_samples: int = MOST_SAMPLES
) -> pl.DataFrame:
    """The questions that stand in samples, by id.

    Columns: `question_id`, `samples` (how many of them), `share` and `similarity` (the largest). These are samples with
    at least `least` of the question's n-grams, and near-duplicates of it; and those with fewer, where there are no more
    than `most_samples` of these.

    contamination: OVERLAPS, of all shards; of a part of the samples where only these were trained on.
    """
    large = (pl.col("share") >= least) | (pl.col("similarity") >= NEAR)
    few = (~large).sum().over("question_id") <= most_samples
    return (
        contamination.filter(large | few)
        .group_by("question_id")
        .agg(samples=pl.len(), share=pl.max("share"), similarity=pl.max("similarity"))
        .sort("question_id")
    )


def without_touched(
    scores: pl.DataFrame,
    contamination: pl.DataFrame,
    *,
    least: float = LEAST_SHARE,
    most_samples: int = MOST_SAMPLES,
) -> pl.DataFrame:
    """The rows of `scores` (tables.SCORES, or others with a `question_id`) whose questions stand in no sample.

    For values that are compared between variants `contamination` is that of all the data: each is then measured on
    the same questions. Arguments: see `touched`.
    """
    found = touched(contamination, least=least, most_samples=most_samples)
    return scores.join(found, on="question_id", how="anti", maintain_order="left")
