"""The order that each method puts the samples in, and how far each two agree: rank correlations, common first ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.comparison.result import Overlap, Pair
from gateau_dagster.selection.statistics import Vector, average_ranks, pearson

Mask = NDArray[np.bool_]
SCORE = "score:"
"""Prefix of a method's column."""
SHARES = (0.1, 0.3, 0.5)
KENDALL_SAMPLES = 100_000
"""Kendall's tau is O(n log n); over more common samples than this it is taken over as many, drawn with a fixed seed.

The standard error of tau over so many is at most 1 / sqrt(KENDALL_SAMPLES), 0.003.
"""


@dataclass(frozen=True, kw_only=True)
class Orders:
    """M methods over n samples in order of id.

    scores: float64 [M, n], NaN where the method cannot score the sample. places: int32 [M, n], 1 is the best, equal
    scores in order of id; 0 where there is no score.
    """

    names: tuple[str, ...]
    scores: NDArray[np.float64]
    places: NDArray[np.int32]

    @property
    def samples(self) -> int:
        """n."""
        return self.scores.shape[1]

    @property
    def scored(self) -> list[int]:
        """How many samples each method scores, [M]."""
        return [int(count) for count in (self.places > 0).sum(axis=1)]

    def first(self, method: int, wanted: int) -> Mask:
        """The `wanted` samples that a method ranks first, bool [n]: fewer when it scores fewer, never one without a
        score."""
        return (self.places[method] > 0) & (self.places[method] <= wanted)

    def of(self, rows: Mask) -> "Orders":
        """The same methods over some of the samples, ranked among these."""
        return orders_of(self.names, self.scores[:, rows])

    def pairs(self) -> list[tuple[int, int]]:
        """Each two methods once."""
        count = len(self.names)
        return [(first, second) for first in range(count) for second in range(first + 1, count)]


def read_orders(frame: pl.DataFrame, names: Sequence[str]) -> Orders:
    """Orders from columns `score:<name>` (f64, null: no score) of a frame that is sorted by `sample_id`.

    Raises ValueError for a column that is missing, or that holds NaN or an infinite value.
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
    """Orders of scores [M, n], NaN where there is none."""
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
