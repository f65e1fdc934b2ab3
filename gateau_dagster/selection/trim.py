"""Say which contexts training may cut to what theta_A was shown (`training.trim`), from the tables of the pair.

A sample is cut if all of these hold:

- its dependency is near or closed_book (selection.evidence);
- each far segment that was read gains less than LEAST_GAIN over near text, summed over the response's tokens;
- its score is in the lowest quarter of the samples of these two classes (LEAST_SCORE);
- theta_A was shown less of its context than theta_B;
- no hash of its id keeps it whole: WHOLE of the samples stay, so that a long context does not come to mean far text.

`dependency` misses almost half of the samples that need far text (docs/evidence/real_text.md), and calls them near or
closed_book. The second and the third condition keep these whole. The score is the sum of both terms of preset `robust`,
whatever method ranks the samples:

    mean_t p_B(y_t|c,x) - mean_t p_A(y_t|c within W,x) + far-segment gain

Far samples that are recognised say little about those that are missed, whose scores are much lower: a bound taken from
them cuts as many as no bound.
"""

# What it does: it decides for each sample whether its far text can go, from three signs that must agree. One sign is
# not enough, because a far sample that loses its context teaches to answer without evidence.
#
# What it costs: it reads tables that scoring has made anyway. Its benefit is bounded by the samples that it dares to
# cut, at most a quarter of those without far text.
#
# When another way is better: whole contexts are the default. In docs/evidence/effect.md trimming was level with `mix`:
# it freed only about a tenth of the tokens there. It can pay where most contexts are much longer than theta_A's
# window, and tokens limit the training rather than samples. To drop samples that teach nothing, see `selection.drop`.

import polars as pl

from gateau_dagster.config.selection import DependencyClass
from gateau_dagster.selection.evidence import CAM_COLUMNS, CLASS_OF, LONG_COLUMNS, dependencies
from gateau_dagster.selection.statistics import uniform

# Raise it when the same tables give other cuts.
CODE_VERSION = "2"

LEAST_GAIN = 0.5
"""The gain of a far segment, in expected response tokens, from which a context stays whole."""
LEAST_SCORE = 0.25
"""The quantile, among the scores of near and closed-book samples, from which a context stays whole."""
WHOLE = 0.15
"""The share of the samples that stay whole in any case."""
_CLASSES: tuple[DependencyClass, ...] = ("near", "closed_book")

SHORT_COLUMNS = ("sample_id", "context_tokens", "mean_probability")
TRIM_CAM_COLUMNS = (*CAM_COLUMNS, "far_gain")
TRIM_LONG_COLUMNS = (*LONG_COLUMNS, "context_tokens")


def trim_figures(cam: pl.DataFrame, long: pl.DataFrame, short: pl.DataFrame) -> pl.DataFrame:
    """Return the figures that decide the cut of each sample in all three tables; a row depends on its sample only.

    Columns are `sample_id`; `class` str, of CLASSES; `gain` f64, the largest gain of a far segment; `score` f64 in
    [-1, 2], as above; `context_tokens` and `shown_tokens` i32, the tokens of its context that theta_B and theta_A were
    shown.

    Args:
        cam: rows of the table `cam`, with TRIM_CAM_COLUMNS.
        long: rows of theta_B's perplexity table, with TRIM_LONG_COLUMNS.
        short: rows of theta_A's, with SHORT_COLUMNS.
    """
    segments = pl.col("segment_gain").list
    far = segments.head(segments.len() - pl.col("near_segments"))
    figures = cam.select("sample_id", "far_gain", gain=far.list.max().fill_null(0.0))
    shown = short.select("sample_id", shown_tokens="context_tokens", short_probability="mean_probability")
    joined = (
        dependencies(cam, long).join(figures, on="sample_id").join(long, on="sample_id").join(shown, on="sample_id")
    )
    gained = pl.col("mean_probability") - pl.col("short_probability")
    return joined.select(
        "sample_id",
        "gain",
        "context_tokens",
        "shown_tokens",
        score=gained + pl.col("far_gain").fill_null(0.0),
        **{"class": pl.col("dependency").replace_strict(CLASS_OF, return_dtype=pl.String())},
    )


def trims(figures: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Return `sample_id` and `shown_tokens` i32 of the samples to cut: the tokens at the context's end that stay.

    Args:
        figures: of all samples of the pool, see `trim_figures`.
        seed: of the hash that keeps some samples whole; a sample's hash does not depend on others.
    """
    without_far = figures.filter(pl.col("class").is_in(_CLASSES))
    cut = without_far.filter(
        pl.col("gain") < LEAST_GAIN,
        pl.col("score") < pl.col("score").quantile(LEAST_SCORE, "lower"),
        pl.col("shown_tokens") < pl.col("context_tokens"),
    )
    kept = [stays_whole(sample_id, seed=seed) for sample_id in cut["sample_id"]]
    return cut.filter(~pl.Series(kept, dtype=pl.Boolean())).select("sample_id", "shown_tokens")


def stays_whole(sample_id: str, *, seed: int) -> bool:
    """Return whether the sample belongs to the WHOLE share that no rule cuts."""
    return uniform(f"trim/{sample_id}", seed) < WHOLE  # not the number that the draws of rules take
