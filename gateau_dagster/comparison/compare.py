"""Compare the methods: their agreement, their preferences, and the samples that they dispute."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.comparison.orders import KENDALL_SAMPLES, Mask, Orders, compare_pairs, levels, read_orders
from gateau_dagster.comparison.result import (
    AlphaSweep,
    AttentionSweep,
    Bucket,
    Disputed,
    FigureSpread,
    MethodComparison,
    MethodFacts,
    Profile,
    SegmentLengthSweep,
)
from gateau_dagster.selection.statistics import Vector, auroc_of_all

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
