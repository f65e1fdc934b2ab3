"""Say which text each response depends on, from the tables of theta_B. No model runs.

A segment is evidence for a response if it raises the probability of some response token by NAMED_GAIN: a far one above
all near text and above no context, a near one above no context. Text that any other segment replaces is no evidence:
a model that has never read an instruction without a context predicts better behind any text at all.
"""

from typing import get_args

import polars as pl

from gateau_dagster.config.selection import Dependency

# Raise it when the same tables give other rows.
CODE_VERSION = "1"

# Then the token is likelier than all others together, and from near text it is not. Plain text seldom reaches that by
# chance, even as a maximum over many segments.
NAMED_GAIN = 0.5
# The best near segment makes the whole response e^5 = 150 times likelier than the median segment does. This finds near
# evidence that far text repeats.
_WHOLE_RESPONSE = 5.0
# A near segment of less than e times the likelihood that the median segment gives is no evidence.
_ONE_SEGMENT = 1.0
# Mean probability of a response token, given everything, below which nothing explains a response without evidence.
_PREDICTED = 0.1

FAR: tuple[Dependency, ...] = ("one_far", "several_far")
LEAST_FAR = 0.5
"""The share of far dependencies among the chosen samples below which the check of `selected_subset` warns."""

# Per sample, the far segments that its map names, ascending.
NAMED = pl.Schema({"sample_id": pl.String(), "named": pl.List(pl.Int32())})
GAINS = ("near_probability", "far_probability", "far_segment")
CAM_COLUMNS = ("sample_id", *GAINS, "no_context_probability", "near_segments", "segment_gain", "segment_perplexity")
LONG_COLUMNS = ("sample_id", "mean_probability")


def named_of(cam: pl.DataFrame) -> pl.DataFrame:
    """Return NAMED for these rows of `cam`; the same segments as those of their maps."""
    gain = pl.col("far_probability").cast(pl.Float64) - pl.col("near_probability")
    named = (
        cam.explode(*GAINS)
        .filter(gain >= NAMED_GAIN, pl.col("far_segment").is_not_null())
        .group_by("sample_id")
        .agg(named=pl.col("far_segment").unique().sort())
    )
    found = cam.select("sample_id").join(named, on="sample_id", how="left", maintain_order="left")
    return found.with_columns(pl.col("named").fill_null(pl.lit([], dtype=pl.List(pl.Int32()))))


def dependencies(cam: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_id`, `segments` list[i32] and `dependency` str of the samples of both tables.

    `segments` are the evidence, ascending. `dependency` is, in this order: `several_far` or `one_far` by the number of
    far segments among them; `near` if near text alone is evidence; `unpredictable` if the response's tokens have a mean
    probability below _PREDICTED even given everything; else `closed_book`.

    Args:
        cam: CAM_COLUMNS.
        long: LONG_COLUMNS of theta_B's perplexity table.
    """
    near = _near_evidence(cam)
    found = long.select(LONG_COLUMNS).join(named_of(cam), on="sample_id").join(near, on="sample_id", how="left")
    far = pl.col("named").list.len()
    closed_book, near, one_far, several_far, unpredictable = map(pl.lit, get_args(Dependency))
    return found.select(
        "sample_id",
        segments=pl.concat_list("named", pl.col("near").fill_null(pl.lit([], dtype=pl.List(pl.Int32())))),
        dependency=pl.when(far > 1)
        .then(several_far)
        .when(far == 1)
        .then(one_far)
        .when(pl.col("near").is_not_null())
        .then(near)
        .when(pl.col("mean_probability") < _PREDICTED)
        .then(unpredictable)
        .otherwise(closed_book),
    )


def _near_evidence(cam: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_id` and `near` list[i32], the near segments that are evidence, of the samples that have some.

    Near text is evidence if it raises a token by NAMED_GAIN, and far text does not raise it as well, or the text is
    better for the whole response than the median segment.
    """
    none, near, far = (pl.col(f"{name}_probability").cast(pl.Float64) for name in ("no_context", "near", "far"))
    tokens = cam.explode("no_context_probability", "near_probability", "far_probability").group_by("sample_id")
    by_token = tokens.agg(
        tokens=pl.len(), raised=(near - none).max(), alone=(near - pl.max_horizontal(none, far)).max()
    )
    log_perplexity, segment = pl.col("segment_perplexity").log(), pl.col("segment")
    # How much likelier the response is than behind the median segment, in nats; a single segment has none beside it.
    better = (log_perplexity.median().over("sample_id") - log_perplexity) * pl.col("tokens")
    better = pl.when(pl.len().over("sample_id") > 1).then(better).otherwise(float("inf"))
    segments = pl.int_ranges(pl.col("segment_gain").list.len(), dtype=pl.Int32)
    return (
        cam.select("sample_id", "near_segments", "segment_gain", "segment_perplexity", segment=segments)
        .with_columns(first_near=segment.list.len() - pl.col("near_segments"))
        .explode("segment", "segment_gain", "segment_perplexity")
        .join(by_token, on="sample_id")
        .with_columns(better=better)
        .filter(segment >= pl.col("first_near"), pl.col("raised") >= NAMED_GAIN)
        .filter((pl.col("alone") >= NAMED_GAIN) | (pl.col("better").max().over("sample_id") >= _WHOLE_RESPONSE))
        .filter(pl.col("segment_gain") >= NAMED_GAIN, pl.col("better") >= _ONE_SEGMENT)
        .group_by("sample_id")
        .agg(near=segment.sort())
    )
