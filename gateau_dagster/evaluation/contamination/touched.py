"""Reduce a benchmark to the questions that do not occur in the data."""

from __future__ import annotations

import polars as pl

from gateau_dagster.evaluation.contamination.asked_texts import NEAR

# Raise it when the same overlaps mark other questions as touched.
CODE_VERSION = "1"
LEAST_SHARE = 0.05
"""Share of a question's n-grams that is more than common wording, however many samples have it."""
MOST_SAMPLES = 10
"""Most samples with a share below LEAST_SHARE of a question that still count as containing it.
More samples share only common wording, such as the frame of a web page. After Brown et al., 2020, appendix C, who leave
out n-grams of more than ten documents."""


def touched(
    contamination: pl.DataFrame, *, least: float = LEAST_SHARE, most_samples: int = MOST_SAMPLES
) -> pl.DataFrame:
    """Return the questions that occur in samples, by id.

    Columns: `question_id`, `samples` (how many contain it), `share` and `similarity` (the largest). Samples with at
    least `least` of the question's n-grams contain it, and so do its near-duplicates. Samples with a smaller share
    count only where there are at most `most_samples` of them.

    contamination: OVERLAPS of all shards, or of the samples that were trained on.
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
    """Return the rows of `scores` (tables.SCORES, or others with a `question_id`) whose questions occur in no sample.

    To compare values between variants, pass the `contamination` of all the data, so that each variant is measured on
    the same questions. The other arguments are those of `touched`.
    """
    found = touched(contamination, least=least, most_samples=most_samples)
    return scores.join(found, on="question_id", how="anti", maintain_order="left")
