"""Repeat the papers' studies of alpha and of the segment length from stored tables; no model is loaded.

Alpha weighs the two terms of Eq. 6, which a preset computes from `hmp` and `cas`. `combined_scores` holds these for
every preset, so every alpha is exact.

The mean attention to a segment of m·L tokens is the weighted mean over its m segments of L tokens. Attention at every
multiple of the stored length is therefore exact (`attention_sweep`). The perplexity of the response given a longer
segment alone needs another pass of the model; so do CAS (Eq. 5) and the far-segment gain. Rankings are compared
between tables that were computed at each length: `cam`, and `cam_at/<length>` for each of `selection.segment_lengths`
(`segment_length_sweep`).
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl

from gateau_dagster.comparison.result import (
    AlphaCurve,
    AlphaSweep,
    AttentionPoint,
    AttentionSweep,
    Point,
    SegmentLengthSweep,
)
from gateau_dagster.config.selection import PRESETS, Preset, alpha_of
from gateau_dagster.errors import GateauError
from gateau_dagster.selection.combine import combine, rank
from gateau_dagster.selection.presets import PRESET_TERMS, PresetScores
from gateau_dagster.selection.statistics import Vector, auroc_of_all, average_ranks, pearson

ALPHAS = tuple(step / 10 for step in range(11))
FACTORS = (1, 2, 4, 8, 16)


def alpha_sweep(
    combined: pl.DataFrame,
    *,
    preset: Preset,
    alpha: float | None,
    chosen: int,
    sources: pl.DataFrame | None = None,
    ground_truth: Collection[str] = (),
    alphas: Sequence[float] = ALPHAS,
) -> AlphaSweep:
    """Compare every preset at every alpha (Eq. 6) with the ranking of `preset` at `alpha` (None: the preset's own).

    Args:
        combined: tables.COMBINED_SCORES with the columns that `combine` adds.
        sources: `sample_id` and `source` str of every sample, needed with a ground truth. A sample that is not in
            `combined` ranks last.
        ground_truth: values of `source` known to need far context.
    """
    # By id, so that the tie rule here is the one of `combine`: equal scores in another order would count as a change of
    # rank.
    ordered = combined.sort("sample_id")  # ties break by place
    chosen = min(chosen, ordered.height)
    far = None if sources is None else far_samples(ordered, sources, ground_truth)
    terms: dict[Preset, PresetScores] = {}
    for name in PRESETS:
        hmp, cas = (ordered[f"{kind}_{name}"].fill_null(float("nan")).to_numpy() for kind in ("hmp", "cas"))
        terms[name] = PRESET_TERMS[name](hmp, cas)
    alpha = alpha_of(preset, alpha)
    configured = rank(terms[preset], terms[preset].score(alpha))
    curves = []
    for name, scores in terms.items():
        points = []
        for value in alphas:
            score = scores.score(value)
            points.append(point(value, rank(scores, score), configured, chosen=chosen, score=score, far=far))
        curves.append(AlphaCurve(preset=name, points=tuple(points)))
    return AlphaSweep(preset=preset, alpha=alpha, samples=ordered.height, chosen=chosen, curves=tuple(curves))


def segment_length_sweep(
    short: pl.DataFrame,
    long: pl.DataFrame,
    cams: Mapping[int, pl.DataFrame],
    *,
    configured: int,
    preset: Preset,
    alpha: float | None,
    chosen: int,
    sources: pl.DataFrame | None = None,
    ground_truth: Collection[str] = (),
) -> SegmentLengthSweep:
    """Compare the ranking at each segment length (tokens) of `cams` with that at `configured`.

    Only samples that are in all tables are ranked.

    Args:
        short, long: tables.PERPLEXITY, which do not depend on the length.
        cams: tables.CAM by length, `configured` among them; without `cas` where `preset` is robust, which does not read
            it.
        sources: `sample_id` and `source`, needed with a ground truth.

    Raises:
        GateauError: `combine` raises it, or the tables have no sample in common.
    """
    assert configured in cams
    ids = long.select("sample_id")
    for cam in cams.values():
        ids = ids.join(cam.select("sample_id"), on="sample_id", how="semi")
    if ids.is_empty():
        raise GateauError(
            "selection.no_scores",
            "the cam tables of these segment lengths have no sample in common: compute them from one input",
        )
    found = {}
    for length, cam in sorted(cams.items()):
        some = cam.join(ids, on="sample_id", how="semi")
        if "cas" not in some.columns:
            assert preset == "robust", "the other presets rank by CAS"
            some = some.with_columns(cas=pl.lit(None, pl.Float64))
        found[length] = combine(short, long, some, preset=preset, alpha=alpha).sort("sample_id")
    first = found[configured]
    chosen, ranks = min(chosen, first.height), first["rank"].to_numpy()
    far = None
    if sources is not None:
        far = far_samples(first, sources.join(ids, on="sample_id", how="semi"), ground_truth)
    points = [
        point(length, frame["rank"].to_numpy(), ranks, chosen=chosen, score=frame["score"].to_numpy(), far=far)
        for length, frame in found.items()
    ]
    return SegmentLengthSweep(
        configured=configured,
        samples=first.height,
        chosen=chosen,
        points=tuple(points),
        single=tuple(int((frame["segments"] < 2).sum()) for frame in found.values()),
    )


def point(
    value: float, ranks: np.ndarray, configured: np.ndarray, *, chosen: int, score: Vector, far: np.ndarray | None
) -> Point:
    """Compare a ranking [n] with the `configured` one (1 is the best in both); `far`: bool [n + absent], from
    far_samples.
    """
    common = int(((ranks <= chosen) & (configured <= chosen)).sum())
    auroc = None
    if far is not None:  # samples that have no score rank last, as NaN
        auroc = auroc_of_all(np.pad(score, (0, far.size - score.size), constant_values=np.nan), far)
    return Point(
        value=value,
        spearman=pearson(ranks.astype(np.float64), configured.astype(np.float64)),
        overlap=common / max(1, chosen),
        auroc=auroc,
    )


def far_samples(frame: pl.DataFrame, sources: pl.DataFrame, ground_truth: Collection[str]) -> np.ndarray | None:
    """Return whether each sample's source is in `ground_truth`, bool [n + absent]; None when all samples are alike.

    The n rows of `frame` (`sample_id`) come first, then the samples that only `sources` (`sample_id`, `source`) holds.
    """
    ranked = frame.select("sample_id").join(sources, on="sample_id", how="left", maintain_order="left")
    absent = sources.join(frame, on="sample_id", how="anti")
    far = pl.concat([ranked["source"], absent["source"]]).is_in(list(ground_truth)).fill_null(False)
    return far.to_numpy() if far.any() and not far.all() else None


def attention_sweep(
    peaks: pl.DataFrame, *, segment_length: int, factors: Sequence[int] = FACTORS
) -> AttentionSweep | None:
    """Summarise the `attention_peaks` of all samples; None when no sample has context."""
    if peaks.is_empty():
        return None
    base = average_ranks(peaks["peak_1"].to_numpy())
    points = [
        AttentionPoint(
            length=factor * segment_length,
            median_peak=float(np.median(peaks[f"peak_{factor}"].to_numpy())),
            spearman=pearson(base, average_ranks(peaks[f"peak_{factor}"].to_numpy())),
        )
        for factor in factors
    ]
    return AttentionSweep(configured=segment_length, samples=peaks.height, points=tuple(points))


def attention_peaks(cam: pl.DataFrame, *, segment_length: int, factors: Sequence[int] = FACTORS) -> pl.DataFrame:
    """Return how peaked the attention to each context is: `sample_id`, and `peak_<f>` f64 at f·`segment_length` tokens.

    A peak is the largest segment mean divided by the mean of the whole context: at least 1, and 1 with one segment.
    Samples without context, or without any attention to it, are left out.

    Args:
        cam: `sample_id`, `segment_attention` (raw means of Eq. 4) and `context_tokens` (that theta_B read), of a shard
            or of all.
    """
    some = cam.filter(pl.col("segment_attention").list.sum() > 0)
    segments = some["segment_attention"].list.len().cast(pl.Int64).to_numpy()
    context = some["context_tokens"].cast(pl.Int64).to_numpy()
    assert (segments == -(-context // segment_length)).all(), "not the length that the table was made with"
    starts = np.cumsum(segments) - segments
    place = np.arange(segments.sum()) - np.repeat(starts, segments)
    tokens = np.full(place.size, segment_length)
    tokens[starts + segments - 1] = context - (segments - 1) * segment_length
    mass = some["segment_attention"].explode().cast(pl.Float64).to_numpy() * tokens
    found = {"sample_id": some["sample_id"]}
    for factor in factors:
        merged = np.flatnonzero(place % factor == 0)  # the first of the segments that are merged
        means = _sums(mass, merged) / _sums(tokens, merged)
        largest = np.maximum.reduceat(means, np.searchsorted(merged, starts)) if means.size else means
        found[f"peak_{factor}"] = pl.Series(largest / (_sums(mass, starts) / context))
    return pl.DataFrame(found).sort("sample_id")


def _sums(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    # numpy sums the parts of `values` that begin at `starts`, but refuses an empty list of them.
    return np.add.reduceat(values, starts).astype(np.float64) if starts.size else np.empty(0)
