"""Find the text that each response depends on, from the tables of theta_B. No model runs.

A segment is evidence for a response if it raises the probability of some response token by NAMED_GAIN: a far one above
all near text and above no context, a near one above no context. A segment that any other segment can replace is no
evidence: a model that has never read an instruction without a context predicts better after any text.
"""

from typing import get_args

import polars as pl

from gateau_dagster.config.selection import Dependency, DependencyClass

# Raise it when the same tables give other dependencies or segments.
CODE_VERSION = "2"
# Raise it when the same tables give other sums for the forecast (`token_sums`).
SUMS_CODE_VERSION = "1"

DEPENDENT = 0.2
"""Smallest gain in probability of a token that depends on far text, or on near text."""

# Then the token is likelier than all others together, and from near text it is not. Plain text seldom reaches that by
# chance, even as a maximum over many segments.
NAMED_GAIN = 0.5
# The best near segment makes the whole response e^5 = 150 times likelier than the typical one. This finds near evidence
# that far text repeats.
_WHOLE_RESPONSE = 5.0
# Beside a near segment that makes the response e times likelier than the typical one, one that does not is no evidence.
_ONE_SEGMENT = 1.0
# The median of so many segments, one of them far, is typical. That of fewer may be the evidence itself.
_COMPARED = 3
# Mean probability of a response token, given everything, below which nothing explains a response without evidence.
_PREDICTED = 0.1

FAR: tuple[Dependency, ...] = ("one_far", "several_far")
MEANINGS: dict[Dependency, str] = {
    "closed_book": "no text; it is predicted without the context",
    "near": "near text",
    "one_far": "one far segment",
    "several_far": "several far segments",
    "unpredictable": "no text that was found; it is not predicted",
}
"""Each dependency in words."""
CLASS_OF: dict[Dependency, DependencyClass] = {
    "closed_book": "closed_book",
    "near": "near",
    "one_far": "far",
    "several_far": "far",
    "unpredictable": "unpredictable",
}
"""The class of each dependency: the unit of quotas and of shares of a pool."""
LEAST_FAR = 0.5
"""The share of far dependencies among the chosen samples below which the check of `selected_subset` warns."""


def far_share(dependencies: pl.Series) -> float | None:
    """Return the share of samples that depend on far text, in [0, 1], among those of known dependency.

    `dependencies`: str, null if unknown. None if no dependency is known.
    """
    shown = dependencies.drop_nulls()
    return float(shown.is_in(FAR).sum()) / shown.len() if shown.len() else None


# The far segments that the map of each sample names, ascending.
NAMED = pl.Schema({"sample_id": pl.String(), "named": pl.List(pl.Int32())})
GAINS = ("near_probability", "far_probability", "far_segment")
CAM_COLUMNS = ("sample_id", *GAINS, "no_context_probability", "near_segments", "segment_gain", "segment_perplexity")
LONG_COLUMNS = ("sample_id", "mean_probability")


def named_of(cam: pl.DataFrame) -> pl.DataFrame:
    """Return NAMED for these rows of `cam`: the far segments that their evidence maps name."""
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
        cam: rows of the table `cam`, with CAM_COLUMNS.
        long: rows of theta_B's perplexity table, with LONG_COLUMNS.
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

    Near text must raise a token by NAMED_GAIN. It is evidence if far text does not raise that token as much. It is
    evidence, too, if one of its segments makes the whole response likelier by _WHOLE_RESPONSE than the typical segment.
    The typical segment has the median perplexity of those that were read; if these are too few, an empty context takes
    its place.
    """
    none, near, far = (pl.col(f"{name}_probability").cast(pl.Float64) for name in ("no_context", "near", "far"))
    tokens = cam.explode("no_context_probability", "near_probability", "far_probability").group_by("sample_id")
    by_token = tokens.agg(
        tokens=pl.len(),
        raised=(near - none).max(),
        alone=(near - pl.max_horizontal(none, far)).max(),
        no_context=-none.log().mean(),
    )
    log_perplexity, segment = pl.col("segment_perplexity").log(), pl.col("segment")
    # Segments that screening leaves unread have no perplexity.
    far_is_read = log_perplexity.filter(segment < pl.col("first_near")).count().over("sample_id") > 0
    comparable = far_is_read & (log_perplexity.count().over("sample_id") >= _COMPARED)
    typical = pl.when(comparable).then(log_perplexity.median().over("sample_id")).otherwise("no_context")
    # How much likelier than the typical one the best segment and each segment make the response, in nats.
    best, better = pl.col("better").max().over("sample_id"), pl.col("better")
    segments = pl.int_ranges(pl.col("segment_gain").list.len(), dtype=pl.Int32)
    return (
        cam.select("sample_id", "near_segments", "segment_gain", "segment_perplexity", segment=segments)
        .with_columns(first_near=segment.list.len() - pl.col("near_segments"))
        .explode("segment", "segment_gain", "segment_perplexity")
        .join(by_token, on="sample_id")
        .with_columns(better=(typical - log_perplexity) * pl.col("tokens"))
        .filter(segment >= pl.col("first_near"), pl.col("raised") >= NAMED_GAIN, pl.col("segment_gain") >= NAMED_GAIN)
        .filter((pl.col("alone") >= NAMED_GAIN) | (best >= _WHOLE_RESPONSE))
        .filter((better >= _ONE_SEGMENT) | (best < _ONE_SEGMENT))
        .group_by("sample_id")
        .agg(near=segment.sort())
    )


def token_sums(cam: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Return the inputs of `far_deficit`, one row per sample in both tables; the table `evidence` holds them.

    Columns: `sample_id`; `far_tokens` u32 and `far_sum` f64, the tokens that depend on far text and their sum of
    F − p_B; `near_tokens` and `near_sum`, the same for near text with N − p_B. See Deficit.

    Args:
        cam: any rows, with `sample_id`, `no_context_probability`, `near_probability`, `far_probability`.
        long: `sample_id` and `token_probability` of theta_B's perplexity table.
    """
    columns = ("no_context_probability", "near_probability", "far_probability", "token_probability")
    none, near, far, whole = (pl.col(name).cast(pl.Float64) for name in columns)
    on_far, on_near = far - near >= DEPENDENT, near - pl.max_horizontal(none, far) >= DEPENDENT
    return (
        cam.select("sample_id", *columns[:3])
        .join(long.select("sample_id", columns[3]), on="sample_id")
        .explode(*columns)
        .group_by("sample_id", maintain_order=True)
        .agg(
            far_tokens=on_far.sum(),
            far_sum=(far - whole).filter(on_far).sum(),
            near_tokens=on_near.sum(),
            near_sum=(near - whole).filter(on_near).sum(),
        )
    )
