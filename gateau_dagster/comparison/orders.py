"""Compute each method's order of the samples and the agreement of each pair: rank correlations and overlaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.comparison.result import Overlap, Pair
from gateau_dagster.selection.statistics import Vector, average_ranks, pearson

Mask = NDArray[np.bool_]
SCORE = "score:"
"""Prefix of the column that holds a method's scores."""
SHARES = (0.1, 0.3, 0.5)
KENDALL_SAMPLES = 100_000
"""Largest number of samples for Kendall's tau, which is O(n log n); of more, this many are drawn with a fixed seed.

The standard error of tau over this many samples is at most 1 / sqrt(KENDALL_SAMPLES), 0.003.
"""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The scores and ranks of n samples, in order of id, by M methods.

    scores: float64 [M, n], NaN where the method cannot score the sample.
    places: int32 [M, n], 1 is the best; equal scores are in order of id; 0 where there is no score.
    """

    names: tuple[str, ...]
    scores: NDArray[np.float64]
    places: NDArray[np.int32]

    @property
    def samples(self) -> int:
        """Return n, the number of samples."""
        return self.scores.shape[1]

    @property
    def scored(self) -> list[int]:
        """Return how many samples each method scores, [M]."""
        return [int(count) for count in (self.places > 0).sum(axis=1)]

    def first(self, method: int, wanted: int) -> Mask:
        """Return the `wanted` samples that a method ranks first, bool [n].

        There are fewer when the method scores fewer; a sample without a score is never among them.
        """
        return (self.places[method] > 0) & (self.places[method] <= wanted)

    def of(self, rows: Mask) -> "Orders":
        """Return the same methods over some of the samples, ranked among these."""
        return orders_of(self.names, self.scores[:, rows])

    def pairs(self) -> list[tuple[int, int]]:
        """Return each pair of methods once, as indices."""
        count = len(self.names)
        return [(first, second) for first in range(count) for second in range(first + 1, count)]


def read_orders(frame: pl.DataFrame, names: Sequence[str]) -> Orders:
    """Return the orders from columns `score:<name>` (f64, null: no score) of a frame sorted by `sample_id`.

    Raises ValueError when a column is missing, or holds NaN or an infinite value.
    """
    missing = [name for name in names if SCORE + name not in frame.columns]
    if missing:
        raise ValueError(f"no column {SCORE}{missing[0]} for a method that is to be compared")
    scores = np.empty((len(names), frame.height))
    for row, name in enumerate(names):
        column = frame[SCORE + name].cast(pl.Float64)
        if not column.is_finite().all():
            raise ValueError(f"{SCORE}{name} holds a value that is not finite: a sample without a score is null")
        scores[row] = column.fill_null(float("nan")).to_numpy()
    return orders_of(tuple(names), scores)


def orders_of(names: tuple[str, ...], scores: NDArray[np.float64]) -> Orders:
    """Return the orders of scores [M, n], NaN where there is none."""
    places = np.zeros(scores.shape, dtype=np.int32)
    for row, values in enumerate(scores):
        places[row] = _places(values)
    return Orders(names=names, scores=scores, places=places)


def _places(values: Vector) -> NDArray[np.int32]:
    order = np.argsort(-values, kind="stable")  # NaN comes last
    known = order[: values.size - int(np.isnan(values).sum())]
    places = np.zeros(values.size, dtype=np.int32)
    places[known] = np.arange(1, known.size + 1)
    return places


def levels(samples: int, chosen: int | None = None, shares: Sequence[float] = SHARES) -> dict[float | None, int]:
    """Return how many first samples of each method to compare, by share of all `samples` (rounded, at least one).

    `chosen`, if given, comes last, under None.
    """
    found: dict[float | None, int] = {share: min(samples, max(1, round(share * samples))) for share in shares}
    return found if chosen is None else {**found, None: chosen}


def compare_pairs(orders: Orders, wanted: Mapping[float | None, int], *, with_kendall: bool = True) -> list[Pair]:
    """Compare every pair of methods over the samples that both score."""
    known = orders.places > 0
    # Ranks over all samples that a method scores; they are reused for each pair whose common samples are all of these.
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
                overlaps=tuple(overlap(orders, one, two, both, *level) for level in wanted.items()),
            )
        )
    return pairs


def kendall(first: Vector, second: Vector, *, most: int = KENDALL_SAMPLES) -> float | None:
    """Return Kendall's tau-b of two float64 vectors [n].

    It is (concordant - discordant) / sqrt(untied in one · untied in two), or None where one side is constant. Of more
    than `most` samples, `most` are drawn without replacement, always the same.
    """
    from scipy.stats import kendalltau  # slow to import

    if first.size > most:
        drawn = np.sort(np.random.default_rng(0).choice(first.size, most, replace=False))
        first, second = first[drawn], second[drawn]
    if first.size < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    found: Any = kendalltau(first, second, variant="b")
    return float(found.statistic)


def overlap(orders: Orders, one: int, two: int, both: Mask, share: float | None, wanted: int) -> Overlap:
    """Return the overlap of two methods' first `wanted` samples; `both`: the samples that both score, bool [n].

    The methods score the samples S_A and S_B; A and B are their first ones. For random sets of the same sizes, the mean
    number of common samples is |S_A and S_B| · |A|/|S_A| · |B|/|S_B|. Each sample that both score is in A or B
    independently.
    """
    sets = [orders.first(method, wanted) for method in (one, two)]
    sizes = [int(members.sum()) for members in sets]
    scored = [int((orders.places[method] > 0).sum()) for method in (one, two)]
    common = int((sets[0] & sets[1]).sum())
    if not min(sizes):
        return Overlap(share=share, wanted=wanted, common=0, overlap=None, expected=None)
    by_chance = int(both.sum()) * sizes[0] * sizes[1] / (scored[0] * scored[1])
    return Overlap(
        share=share,
        wanted=wanted,
        common=common,
        overlap=common / max(sizes),
        expected=by_chance / max(sizes),
    )
