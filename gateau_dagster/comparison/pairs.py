"""Each two methods: rank correlations, and common samples among the first of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateau_dagster.comparison.orders import Mask, Orders
from gateau_dagster.comparison.result import Overlap, Pair
from gateau_dagster.selection.normalise import Vector, average_ranks

SHARES = (0.1, 0.3, 0.5)
KENDALL_SAMPLES = 100_000
"""Kendall's tau is O(n log n); over more common samples than this it is taken over as many, drawn with a fixed seed.

The standard error of tau over so many is at most 1 / sqrt(KENDALL_SAMPLES), 0.003.
"""


@dataclass(frozen=True, kw_only=True)
class Level:
    """How many of each method's first samples are set side by side; see Overlap."""

    share: float | None
    wanted: int


def levels(samples: int, chosen: int | None = None, shares: Sequence[float] = SHARES) -> list[Level]:
    """`shares` of all `samples`, rounded, at least one; then the number that is `chosen`, if given."""
    found = [Level(share=share, wanted=min(samples, max(1, round(share * samples)))) for share in shares]
    return found if chosen is None else [*found, Level(share=None, wanted=chosen)]


def compare_pairs(orders: Orders, wanted: Sequence[Level], *, with_kendall: bool = True) -> list[Pair]:
    """Every pair of methods, over the samples that both score."""
    known = orders.places > 0
    # Where a pair's common samples are all that a method scores, its ranks among them are the same each time.
    whole = [average_ranks(values[mask]) for values, mask in zip(orders.scores, known, strict=True)]
    pairs = []
    for one, two in orders.pairs():
        both = known[one] & known[two]
        count = int(both.sum())
        ranks = [
            whole[method] if whole[method].size == count else average_ranks(orders.scores[method][both])
            for method in (one, two)
        ]
        pairs.append(
            Pair(
                first=orders.names[one],
                second=orders.names[two],
                common=count,
                spearman=pearson(ranks[0], ranks[1]),
                kendall=kendall(ranks[0], ranks[1]) if with_kendall else None,
                overlaps=tuple(overlap(orders, one, two, both, level) for level in wanted),
            )
        )
    return pairs


def pearson(first: Vector, second: Vector) -> float | None:
    """Correlation of two float64 vectors [n], Spearman's rho when they hold ranks; None where one side is constant."""
    if not first.size:
        return None
    centred = [values - values.mean() for values in (first, second)]
    norms = [float(np.linalg.norm(values)) for values in centred]
    if min(norms) == 0:
        return None
    return float(np.clip(centred[0] @ centred[1] / (norms[0] * norms[1]), -1, 1))


def kendall(first: Vector, second: Vector, *, most: int = KENDALL_SAMPLES) -> float | None:
    """Kendall's tau-b of two float64 vectors [n]: (concordant - discordant) / sqrt(untied in one · untied in two).

    None where one side is constant. Of more than `most` samples, as many drawn without replacement, the same each time.
    """
    from scipy.stats import kendalltau  # slow to import

    if first.size > most:
        drawn = np.sort(np.random.default_rng(0).choice(first.size, most, replace=False))
        first, second = first[drawn], second[drawn]
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    found: Any = kendalltau(first, second, variant="b")
    return float(found.statistic)


def overlap(orders: Orders, one: int, two: int, both: Mask, level: Level) -> Overlap:
    """Common samples among the first `level.wanted` of two methods; `both`: the samples that both score, bool [n].

    With sets A and B of the samples S_A and S_B that the methods score, the mean number of common samples of random
    sets of these sizes is |S_A and S_B| · |A|/|S_A| · |B|/|S_B|: each sample that both score is in either by chance.
    """
    sets = [orders.first(method, level.wanted) for method in (one, two)]
    sizes = [int(members.sum()) for members in sets]
    scored = [int((orders.places[method] > 0).sum()) for method in (one, two)]
    common = int((sets[0] & sets[1]).sum())
    if not min(sizes):
        return Overlap(share=level.share, wanted=level.wanted, common=0, overlap=None, expected=None)
    by_chance = int(both.sum()) * sizes[0] * sizes[1] / (scored[0] * scored[1])
    return Overlap(
        share=level.share,
        wanted=level.wanted,
        common=common,
        overlap=common / max(sizes),
        expected=by_chance / max(sizes),
    )
