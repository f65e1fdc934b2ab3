"""`combined_scores`: the three presets side by side over the whole data set, one of them as the final score."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.selection import PRESETS, Preset
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.far_gain import Segmented
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures, PresetScores

Frame = pl.DataFrame | pl.LazyFrame
_NAMED = 5  # samples that a message names


def combine(
    short: Frame, long: Frame, cam: Frame, *, preset: Preset, alpha: float, segment_length: int
) -> pl.DataFrame:
    """tables.COMBINED_SCORES under `preset`, sorted by rank; one row per sample that all three tables hold.

    `short`, `long` (tables.PERPLEXITY) and `cam` (tables.CAM, its segments of `segment_length` tokens) hold all shards.
    Further columns: `hmp_p`, `cas_p`, `score_p`, `rank_p` for every preset p, `context_tokens`, `response_tokens`,
    `segments`. A null CAS ranks last, by HMP; ties break by sample_id. Raises GateauError when the tables stem from
    different versions of a sample, hold a sample twice, or have none in common.
    """
    joined = _join(short.lazy().collect(), long.lazy().collect(), cam.lazy().collect())
    measures = _measures(joined, segment_length)
    scored = {name: PRESET_FUNCTIONS[name](measures) for name in PRESETS}
    ranks = {name: _rank(joined["sample_id"].to_list(), scores, alpha) for name, scores in scored.items()}
    columns = [pl.col("sample_id"), pl.col("perplexity_short"), pl.col("perplexity_long")]
    columns += _columns(scored[preset], ranks[preset], alpha, suffix="")
    for name in PRESETS:
        columns += _columns(scored[name], ranks[name], alpha, suffix=f"_{name}")
    columns += [pl.col("context_tokens"), pl.col("response_tokens"), pl.col("segments")]
    frame = joined.select(columns).sort("rank")
    promised = tables.schema(tables.COMBINED_SCORES)
    assert dict(list(frame.schema.items())[: len(promised)]) == dict(promised)
    return frame


def unscored(raw: Frame, scores: pl.DataFrame, rejected: Sequence[Frame]) -> pl.DataFrame:
    """`sample_id` and `reason` of the samples in `raw` that `scores` lacks, sorted by id.

    The reasons stand in the `rejected` tables; several are joined by "; ", and null means that none is known, which is
    a gap in the coverage.
    """
    absent = raw.lazy().select("sample_id").collect().join(scores, on="sample_id", how="anti")
    empty = pl.DataFrame(schema=tables.schema(tables.REJECTED))
    reasons = pl.concat([empty, *(frame.lazy().select("sample_id", "reason").collect() for frame in rejected)])
    joined = reasons.unique().sort("reason").group_by("sample_id").agg(pl.col("reason").str.join("; "))
    return absent.join(joined, on="sample_id", how="left").sort("sample_id")


def _join(short: pl.DataFrame, long: pl.DataFrame, cam: pl.DataFrame) -> pl.DataFrame:
    named = {"perplexity/short": short, "perplexity/long": long, "cam": cam}
    for name, frame in named.items():
        twice = frame.filter(frame["sample_id"].is_duplicated())["sample_id"].unique().sort().to_list()
        if twice:
            raise GateauError(f"{name} holds {_listed(twice)} more than once: recompute its shards")
    right = long.select(
        "sample_id",
        "context_tokens",
        "response_tokens",
        digest_long="digest",
        perplexity_long="perplexity",
    )
    segments = cam.select("sample_id", "segments", "segment_perplexity", "cas", digest_cam="digest")
    left = short.select(
        "sample_id",
        digest_short="digest",
        perplexity_short="perplexity",
        visible_tokens="context_tokens",
        response_tokens_short="response_tokens",
    )
    joined = left.join(right, on="sample_id").join(segments, on="sample_id").sort("sample_id")
    differing = joined.filter(
        (pl.col("digest_short") != pl.col("digest_long")) | (pl.col("digest_long") != pl.col("digest_cam"))
    )["sample_id"].to_list()
    if differing:
        raise GateauError(
            f"perplexity/short, perplexity/long and cam scored different versions of {_listed(differing)}: "
            "bring the three tables up to date with `gateau run`"
        )
    uneven = joined.filter(pl.col("response_tokens") != pl.col("response_tokens_short"))["sample_id"].to_list()
    if uneven:
        raise GateauError(
            f"models.short and models.long tokenise differently ({_listed(uneven)}): they are not homologous, and "
            "their perplexities per token cannot be compared. Take two models of one family."
        )
    if joined.is_empty():
        sizes = ", ".join(f"{name} {frame.height}" for name, frame in named.items())
        raise GateauError(f"no sample was scored by all of {sizes}: the rejected tables give the reasons")
    return joined


def _measures(joined: pl.DataFrame, segment_length: int) -> Measures:
    return Measures(
        perplexity_short=joined["perplexity_short"].to_numpy(),
        perplexity_long=joined["perplexity_long"].to_numpy(),
        cas=joined["cas"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        segmented=Segmented(
            context_tokens=joined["context_tokens"].cast(pl.Int64).to_numpy(),
            visible_tokens=joined["visible_tokens"].cast(pl.Int64).to_numpy(),
            segment_perplexity=[np.array(values, dtype=np.float64) for values in joined["segment_perplexity"]],
            segment_length=segment_length,
        ),
    )


def _rank(ids: list[str], scores: PresetScores, alpha: float) -> np.ndarray:
    """1 is the best, int32 [|D|]; `ids` are sorted, so that their places break ties."""
    assert ids == sorted(ids)
    null = np.isnan(scores.cas_term)
    # With alpha 0 the samples without CAS have one score; their HMP still orders them.
    order = np.lexsort((np.arange(len(ids)), np.where(null, -scores.hmp, 0.0), -scores.score(alpha), null))
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(1, len(ids) + 1)
    return ranks


def _columns(scores: PresetScores, ranks: np.ndarray, alpha: float, *, suffix: str) -> list[pl.Expr]:
    cas = pl.Series(scores.cas, dtype=pl.Float64, nan_to_null=True)
    return [
        pl.lit(pl.Series(scores.hmp)).alias(f"hmp{suffix}"),
        pl.lit(cas).alias(f"cas{suffix}"),
        pl.lit(pl.Series(scores.score(alpha))).alias(f"score{suffix}"),
        pl.lit(pl.Series(ranks, dtype=pl.Int32)).alias(f"rank{suffix}"),
    ]


def _listed(ids: list[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ", ".join(ids[:_NAMED]) + more
