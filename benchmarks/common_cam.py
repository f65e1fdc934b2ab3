"""Scores that can be made of attention and of what segments alone say, none of which sees a label: for cam_study.py.

Every score takes a sample, and the attention [R, N] of some heads in some rows: summed over each segment's tokens, and
the largest token's.
"""

from collections.abc import Callable

import numpy as np
from common_heads import Array, Heads

from gateau_dagster.scoring.contextual_awareness import contextual_awareness_score
from gateau_dagster.scoring.segments import TOP_SHARE, counted_tokens
from gateau_dagster.scoring.segments import far_gain as far_gain_of
from gateau_dagster.selection.statistics import pearson, spearman

_TINY = 1e-12

Score = Callable[[Heads, Array, Array], float]  # sample, mass [R, N], peak [R, N] -> score


def cosine(first: Array, second: Array) -> float:
    """0 where one side is all zeros."""
    return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), _TINY))


def segment_probability(heads: Heads) -> Array:
    """P_i = 1 / PPL_B(y | s_i, x), [N]."""
    return np.exp(np.log(np.maximum(heads.alone, _TINY)).mean(axis=1))


def near_probability(heads: Heads) -> Array:
    """Best probability of each response token from the instruction or a near segment alone, [R]."""
    near = heads.alone[int(heads.n_far) :]
    return np.maximum(heads.without, near.max(axis=0)) if len(near) else heads.without


def gains(heads: Heads) -> Array:
    """How much each far segment alone adds to what near text says of each response token, [n_far, R], at least 0."""
    return np.maximum(0.0, heads.alone[heads.far] - near_probability(heads))


def far_gain(heads: Heads) -> float:
    """FG of the method `far_gain`; 0 where nothing can be far."""
    far = heads.alone[heads.far].max(axis=0) if heads.n_far else np.zeros(heads.full.size)
    return far_gain_of(near_probability(heads), far, segments=heads.tokens.size) or 0.0


def _top(values: Array) -> float:
    """Mean of as many of the largest as FG takes."""
    return float(np.sort(values)[::-1][: int(counted_tokens(values.size, top=TOP_SHARE))].mean())


def gained_probability(heads: Heads) -> float:
    """HMPp of the method `far_gain`."""
    return float((heads.full - heads.short).mean())


def _means(mass: Array, heads: Heads) -> Array:
    return mass.mean(axis=0) / heads.tokens  # Eq. 4's raw means per token


def _excess(peak: Array, heads: Heads) -> Array:
    near = peak[:, int(heads.n_far) :]
    return peak[:, heads.far].max(axis=1) - (near.max(axis=1) if near.size else 0.0)


def _share(mass: Array) -> Array:
    """Of each row's attention to the context, [R, N]."""
    return mass / np.maximum(mass.sum(axis=1, keepdims=True), _TINY)


def _of_most_attended(heads: Heads, mass: Array) -> Array:
    """Gain of the segment that each row attends to most, 0 where that is a near one, [R]."""
    most, found = mass.argmax(axis=1), gains(heads)
    return np.array([found[i, t] if i < heads.n_far else 0.0 for t, i in enumerate(most)])


def _paper(heads: Heads, mass: Array, sign: int) -> float:
    """CAS of Eq. 5; sign 1: importance is high where perplexity is, as in Eq. 3, -1: where it is low."""
    return contextual_awareness_score(sign / segment_probability(heads), _means(mass, heads)) or 0.0


def _far_mass(heads: Heads, attention: Array) -> Array:
    return attention[:, heads.far].sum(axis=1)


def _weighted(heads: Heads, mass: Array) -> Array:
    """Gain of each response token, averaged over the far segments by the row's attention, [R]."""
    return (_share(mass)[:, heads.far] * gains(heads).T).sum(axis=1)


def _attended_gain(heads: Heads, mass: Array) -> Array:
    """What everything adds to near text, times the share of attention that is far, [R]."""
    return np.maximum(0, heads.full - near_probability(heads)) * _far_mass(heads, _share(mass))


AGREEMENT: dict[str, Score] = {
    "cosine of softmaxes (Eq. 5)": lambda h, m, _: _paper(h, m, 1),
    "cosine of softmaxes, sign of importance turned": lambda h, m, _: _paper(h, m, -1),
    "Spearman of ranks": lambda h, m, _: spearman(segment_probability(h), _means(m, h)) or 0.0,
    "Pearson": lambda h, m, _: pearson(segment_probability(h), _means(m, h)) or 0.0,
    "cosine, both mass-normalised": lambda h, m, _: cosine(segment_probability(h), m.mean(axis=0)),
}
ATTENTION: dict[str, Score] = {
    "far mass": lambda h, m, _: float(_far_mass(h, m).mean()),
    "far mass, share of context": lambda h, m, _: float(_far_mass(h, _share(m)).mean()),
    "far mass, top rows": lambda h, m, _: _top(_far_mass(h, m)),
    "far peak, top rows": lambda h, _, p: _top(p[:, h.far].max(axis=1)) if h.n_far else 0.0,
    "far minus near peak, top rows": lambda h, _, p: _top(_excess(p, h)) if h.n_far else 0.0,
}
WEIGHTED: dict[str, Score] = {
    "gain weighted by attention": lambda h, m, _: float(_weighted(h, m).mean()),
    "top gains weighted by attention": lambda h, m, _: _top(_weighted(h, m)),
    "top gains of the segment attended to most": lambda h, m, _: _top(_of_most_attended(h, m)),
    "top p(all) - near, times far share": lambda h, m, _: _top(_attended_gain(h, m)),
}
FAMILIES = {"agreement": AGREEMENT, "attention alone": ATTENTION, "attention and gain": WEIGHTED}
