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
from gateau_dagster.selection.agreement import auroc
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
    ground_truth: Collection[str] = (),
    alphas: Sequence[float] = ALPHAS,
) -> AlphaSweep:
    """Every preset at every alpha (Eq. 6), against the ranking of `preset` at `alpha` (None: the preset's own).

    `combined`: tables.COMBINED_SCORES with the columns that `combine` adds, and `source` str when there is a ground
    truth (values of it known to need far context).
    """
    ordered = combined.sort("sample_id")  # ties break by place
    chosen = min(chosen, ordered.height)
    far = far_samples(ordered, ground_truth)
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
    """A ranking [n] against the `configured` one (1 is the best in both); `far`: ground truth, bool [n]."""
    common = int(((ranks <= chosen) & (configured <= chosen)).sum())
    return Point(
        value=value,
        spearman=pearson(ranks.astype(np.float64), configured.astype(np.float64)),
        overlap=common / max(1, chosen),
        auroc=None if far is None else auroc(score, far),
    )


def far_samples(frame: pl.DataFrame, ground_truth: Collection[str]) -> np.ndarray | None:
    """Whether each row's `source` is among `ground_truth`, bool [n]; None when that tells no samples apart."""
    if not ground_truth:
        return None
    far = frame["source"].is_in(list(ground_truth)).fill_null(False)
    return far.to_numpy() if far.any() and not far.all() else None


def _terms(combined: pl.DataFrame, preset: Preset) -> PresetScores:
    hmp, cas = (combined[f"{kind}_{preset}"].fill_null(float("nan")).to_numpy() for kind in ("hmp", "cas"))
    return PRESET_TERMS[preset](hmp, cas)
