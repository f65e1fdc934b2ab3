"""The papers' study of alpha, from the stored raw figures: no model is loaded.

Eq. 6 weighs two terms, which a preset makes of its HMP and its CAS. `combined_scores` holds these for every preset, so
that any alpha is exact.
"""

from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from gateau_dagster.comparison.pairs import pearson
from gateau_dagster.comparison.sweep_results import AlphaCurve, AlphaSweep, Point
from gateau_dagster.config.selection import PRESETS, Preset, alpha_of
from gateau_dagster.selection.agreement import auroc_of_all
from gateau_dagster.selection.combine import rank
from gateau_dagster.selection.normalise import Vector
from gateau_dagster.selection.presets import PRESET_TERMS, PresetScores

ALPHAS = tuple(step / 10 for step in range(11))


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
    """Every preset at every alpha (Eq. 6), against the ranking of `preset` at `alpha` (None: the preset's own).

    `combined`: tables.COMBINED_SCORES with the columns that `combine` adds. `sources`: `sample_id` and `source` str of
    every sample, needed with a ground truth (values of `source` known to need far context); a sample that is not in
    `combined` counts as one of the last.
    """
    ordered = combined.sort("sample_id")  # ties break by place
    chosen = min(chosen, ordered.height)
    far = None if sources is None else far_samples(ordered, sources, ground_truth)
    terms = {name: _terms(ordered, name) for name in PRESETS}
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


def point(
    value: float, ranks: np.ndarray, configured: np.ndarray, *, chosen: int, score: Vector, far: np.ndarray | None
) -> Point:
    """A ranking [n] against the `configured` one (1 is the best in both); `far`: see far_samples, bool [n + absent]."""
    common = int(((ranks <= chosen) & (configured <= chosen)).sum())
    return Point(
        value=value,
        spearman=pearson(ranks.astype(np.float64), configured.astype(np.float64)),
        overlap=common / max(1, chosen),
        auroc=None if far is None else auroc_of_all(_padded(score, far.size), far),
    )


def far_samples(frame: pl.DataFrame, sources: pl.DataFrame, ground_truth: Collection[str]) -> np.ndarray | None:
    """Whether each sample's source is among `ground_truth`, bool [n + absent]; None when that tells no samples apart.

    First the n rows of `frame` (`sample_id`), then the samples that only `sources` (`sample_id`, `source`) holds.
    """
    ranked = frame.select("sample_id").join(sources, on="sample_id", how="left", maintain_order="left")
    absent = sources.join(frame, on="sample_id", how="anti")
    far = pl.concat([ranked["source"], absent["source"]]).is_in(list(ground_truth)).fill_null(False)
    return far.to_numpy() if far.any() and not far.all() else None


def _padded(score: Vector, size: int) -> Vector:
    """With NaN for the samples that have no score, float64 [size]."""
    return np.pad(score, (0, size - score.size), constant_values=np.nan)


def _terms(combined: pl.DataFrame, preset: Preset) -> PresetScores:
    hmp, cas = (combined[f"{kind}_{preset}"].fill_null(float("nan")).to_numpy() for kind in ("hmp", "cas"))
    return PRESET_TERMS[preset](hmp, cas)
