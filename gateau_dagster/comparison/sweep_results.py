"""What the parameter sweeps find."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """A ranking at one value of a parameter, against the configured ranking.

    `spearman`: correlation of the two orders, None for a single sample. `overlap`: share of common samples among the
    first `chosen`. `auroc`: of "needs far context"; None without a ground truth.
    """

    value: float
    spearman: float | None
    overlap: float
    auroc: float | None


@dataclass(frozen=True, kw_only=True)
class AlphaCurve:
    """One preset, at each alpha."""

    preset: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class AlphaSweep:
    """Every preset over alpha, against the configured `preset` at the configured `alpha`."""

    preset: str
    alpha: float
    samples: int
    chosen: int
    curves: tuple[AlphaCurve, ...]


@dataclass(frozen=True, kw_only=True)
class SegmentLengthSweep:
    """The configured preset over segment lengths (tokens), against that of `configured` tokens.

    `single`: for each point, how many samples have fewer than two segments, and rank last.
    """

    configured: int
    samples: int
    chosen: int
    points: tuple[Point, ...]
    single: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionPoint:
    """Attention to segments of `length` tokens.

    `median_peak`: over the samples, median of the largest segment mean over the mean of the whole context; 1 means
    spread evenly. `spearman`: of the samples' peaks with those at the configured length; None where one is constant.
    """

    length: int
    median_peak: float
    spearman: float | None


@dataclass(frozen=True, kw_only=True)
class AttentionSweep:
    """How peaked the attention of `samples` samples is, by segment length."""

    configured: int
    samples: int
    points: tuple[AttentionPoint, ...]
