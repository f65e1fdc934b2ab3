"""Compare the methods: their orders and agreement, their preferences, and the samples that they dispute."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.comparison.result import (
    AlphaSweep,
    AttentionSweep,
    Bucket,
    Disputed,
    FigureSpread,
    MethodComparison,
    MethodFacts,
    Overlap,
    Pair,
    Profile,
    SegmentLengthSweep,
)
from gateau_dagster.selection.statistics import Vector, auroc_of_all, average_ranks, pearson

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
        order = np.argsort(-values, kind="stable")  # NaN comes last
        known = order[: values.size - int(np.isnan(values).sum())]
        places[row, known] = np.arange(1, known.size + 1)
    return Orders(names=names, scores=scores, places=places)


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
        # Only samples that both score: ranks among all would mix in how many samples each method cannot score.
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
    # Beside each overlap, as two methods that choose a third each share a third of it by chance.
    by_chance = int(both.sum()) * sizes[0] * sizes[1] / (scored[0] * scored[1])
    return Overlap(
        share=share,
        wanted=wanted,
        common=common,
        overlap=common / max(sizes),
        expected=by_chance / max(sizes),
    )


# Preferences and disputed samples.


# Raise it when the same scores come to another comparison.
CODE_VERSION = "3"

BEST = 0.1
"""Share of all samples, the best of a method, whose profile shows what the method prefers."""
BOUNDS = (4000, 8000)
"""Boundaries in context tokens of the length buckets 0-4k, 4-8k and 8k+, which long-context benchmarks report."""
DISPUTED = 10
SOURCES = 10
"""Number of sources that are reported by name; all others count as one."""
OTHERS = "(other sources)"
UNKNOWN = "(unknown)"
FIGURES = ("context_tokens", "response_tokens", "perplexity")


class Described(Protocol):
    """A method's name, what a high score means, and its paper and equation, as methods.method.Method has them."""

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The figures and the source of each sample.

    figures: float64 [n] by name, NaN where unknown. source: index of each sample's source in `sources`, int64 [n].
    """

    figures: dict[str, Vector]
    sources: tuple[str, ...]
    source: NDArray[np.int64]


def compare_methods(
    frame: pl.DataFrame,
    methods: Sequence[Described],
    *,
    chosen: int,
    selected_by: str | None = None,
    ground_truth: Collection[str] = (),
    bounds: Sequence[int] = BOUNDS,
    disputed: int = DISPUTED,
    alpha: AlphaSweep | None = None,
    segment_length: SegmentLengthSweep | None = None,
    attention: AttentionSweep | None = None,
) -> MethodComparison:
    """Compare the methods on this data set.

    Args:
        frame: `sample_id` str, `source` str, `context_tokens` and `response_tokens` int, `perplexity` f64 (theta_B's),
            and `score:<method>` f64 for each method (higher is selected first). All but the id may be null.
        chosen: how many samples the selection takes.
        selected_by: the method that decides the selection.
        ground_truth: values of `source` known to need far context.
        bounds: boundaries of the length buckets in context tokens, ascending.
        disputed: how many disputed samples to report.

    A sample that a method cannot score (null) is never among its best. The correlation of two methods covers the
    samples that both score. Equal scores are ordered by id.

    Raises:
        ValueError: a column is missing, an id occurs twice, a score is not finite, or a method name is wrong.
    """
    names = [method.name for method in methods]
    _check(frame, names, selected_by)
    ordered = frame.sort("sample_id")
    orders, traits = read_orders(ordered, names), read_traits(ordered)
    far = ordered["source"].is_in(list(ground_truth)).fill_null(False).to_numpy()
    chosen = min(chosen, orders.samples)
    return MethodComparison(
        samples=orders.samples,
        chosen=chosen,
        selected_by=selected_by,
        kendall_samples=KENDALL_SAMPLES,
        sources=traits.sources,
        everything=profile(traits, np.ones(orders.samples, dtype=np.bool_)),
        methods=tuple(_facts(method, orders, row, traits, far, chosen) for row, method in enumerate(methods)),
        pairs=tuple(compare_pairs(orders, levels(orders.samples, chosen))),
        buckets=tuple(_buckets(orders, traits.figures["context_tokens"], bounds)),
        disputed=tuple(most_disputed(orders, ordered["sample_id"].to_list(), most=disputed)),
        alpha=alpha,
        segment_length=segment_length,
        attention=attention,
    )


def _check(frame: pl.DataFrame, names: Sequence[str], selected_by: str | None) -> None:
    missing = [name for name in ("sample_id", "source", *FIGURES) if name not in frame.columns]
    if missing:
        raise ValueError(f"a comparison of methods needs the columns {', '.join(missing)}")
    if not names or len(set(names)) != len(names):
        raise ValueError("a comparison needs at least one method, each once")
    if selected_by is not None and selected_by not in names:
        raise ValueError(f"{selected_by} selects, but is none of the methods {', '.join(names)}")
    if frame.is_empty():
        raise ValueError("a comparison of methods needs at least one sample")
    repeated = frame["sample_id"].filter(frame["sample_id"].is_duplicated())
    if repeated.len() or frame["sample_id"].null_count():
        raise ValueError(f"a sample stands twice, or has no id: {repeated.first()}")


def _facts(method: Described, orders: Orders, row: int, traits: Traits, far: Mask, chosen: int) -> MethodFacts:
    scored, wanted = orders.scored[row], levels(orders.samples, shares=(BEST,))[BEST]
    measured = scored > 0 and bool(far.any()) and not far.all()
    return MethodFacts(
        name=method.name,
        title=method.title,
        source=method.source,
        scored=scored,
        best=profile(traits, orders.first(row, wanted)),
        auroc=auroc_of_all(orders.scores[row], far) if measured else None,
        precision=float(far[orders.first(row, chosen)].mean()) if measured and chosen else None,
    )


def _buckets(orders: Orders, tokens: np.ndarray, bounds: Sequence[int]) -> list[Bucket]:
    found = []
    for low, high in zip((0, *bounds), (*bounds, None), strict=True):
        rows = (tokens >= low) & (tokens < (np.inf if high is None else high))
        count = int(rows.sum())
        wanted = levels(count, shares=(BEST,))
        pairs = compare_pairs(orders.of(rows), wanted, with_kendall=False) if count else []
        found.append(Bucket(low=low, high=high, samples=count, pairs=tuple(pairs)))
    return found


def read_traits(frame: pl.DataFrame) -> Traits:
    """Read the traits from `source` and FIGURES of a frame.

    The largest `SOURCES` sources come first; the others together are `OTHERS`.
    """
    sources = frame["source"].fill_null(UNKNOWN)
    sizes = sources.value_counts(name="size").sort(["size", "source"], descending=[True, False])
    names = sizes["source"].to_list()
    kept = names if len(names) <= SOURCES + 1 else names[:SOURCES]
    place = {name: min(number, len(kept)) for number, name in enumerate(names)}
    return Traits(
        figures={name: frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in FIGURES},
        sources=tuple(kept) if len(kept) == len(names) else (*kept, OTHERS),
        source=sources.replace_strict(place, return_dtype=pl.Int64).to_numpy(),
    )


def profile(traits: Traits, rows: Mask) -> Profile:
    """Return the profile of the samples of `rows`, bool [n]."""
    count = int(rows.sum())
    spreads = {name: spread(values[rows]) for name, values in traits.figures.items()}
    counts = np.bincount(traits.source[rows], minlength=len(traits.sources))
    return Profile(samples=count, sources=tuple(float(size) / max(1, count) for size in counts), **spreads)


def spread(values: Vector) -> FigureSpread | None:
    """Return mean and quartiles of the finite `values` (linear interpolation); None when there are none."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, median, high = (float(value) for value in np.quantile(known, (0.25, 0.5, 0.75)))
    return FigureSpread(known=known.size, mean=float(known.mean()), low=low, median=median, high=high)


def most_disputed(orders: Orders, ids: Sequence[str], *, most: int) -> list[Disputed]:
    """Return at most `most` samples with the largest `rank_spread`, ties by id; `ids` [n] in the order of `orders`.

    Samples that fewer than two methods score, or that all rank alike, are not disputed.
    """
    spreads = rank_spread(orders)
    found = np.argsort(-spreads, kind="stable")[:most]
    return [
        Disputed(
            sample_id=str(ids[sample]),
            spread=float(spreads[sample]),
            ranks=tuple(int(place) or None for place in orders.places[:, sample]),
        )
        for sample in found
        if spreads[sample] > 0
    ]


def rank_spread(orders: Orders) -> Vector:
    """Return the standard deviation of each sample's rank shares over the methods that score it, float64 [n].

    A rank share is (place - 1/2) / scored. Shares replace ranks because methods score different numbers of samples. The
    result is 0 where fewer than two methods score the sample. It is at most 1/2, when half of the methods put the
    sample first and half last.
    """
    known = orders.places > 0
    sizes = np.maximum(1, np.array(orders.scored))[:, None]
    shares = np.where(known, (orders.places - 0.5) / sizes, 0.0)
    methods = np.maximum(1, known.sum(axis=0))
    means = shares.sum(axis=0) / methods
    deviations = np.where(known, shares - means, 0.0)
    return np.sqrt((deviations**2).sum(axis=0) / methods)
