"""Count each relative distance in a data set, before and after skipping (SkipAlign, section 3.2, Figure 2).

A sample counts once for each distance between a response token and a token that it can attend to: the union over turns
of the sets of such distances. Blocks are contiguous, so the distances between two blocks are an interval. A sample of B
blocks is a union of at most B² intervals. Nothing of the size of tokens times tokens is in memory.

The sets are exact. The paper writes a single turn of l tokens with a skip s as {s, ..., s + l - 1}. The exact set is
{0, ..., |y| - 1}, the distances inside the response, together with {s + 1, ..., s + l - 1}, those across the skip. The
two agree without a skip: both are {0, ..., l - 1}.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

from gateau_dagster.training.skip_positions import Strategy, copy_numbers, position_rng, skip_positions

_GROWTH, _MOST_OF_RANGE = 0.15, 0.01
"""The width of a bin is 15 % of its distance, at most 1 % of the whole range."""


class DistanceCounts:
    """The number of samples that hold each distance; memory grows only with the largest distance."""

    def __init__(self) -> None:
        # A sample that holds distances a..b adds 1 at a and -1 at b + 1: the running sum counts samples.
        self._steps = np.zeros(1024, dtype=np.int64)
        self.samples = 0

    def add(self, blocks: Sequence[int], positions: np.ndarray) -> None:
        """Count one sample.

        Args:
            blocks: tokens of each block, instruction and response alternating, an instruction first.
            positions: int64 [sum(blocks)], strictly increasing and contiguous inside each block.
        """
        self.samples += 1
        for first, last in distance_intervals(blocks, positions):
            while last + 1 >= self._steps.size:
                self._steps = np.concatenate([self._steps, np.zeros_like(self._steps)])
            self._steps[first] += 1
            self._steps[last + 1] -= 1

    def counts(self) -> np.ndarray:
        """Return the samples that hold each distance: int64 [largest distance + 1]."""
        counts = np.cumsum(self._steps)
        held = np.flatnonzero(counts)
        return counts[: int(held[-1]) + 1 if held.size else 0]


def distance_intervals(blocks: Sequence[int], positions: np.ndarray) -> list[tuple[int, int]]:
    """Return the distances that one sample holds, as disjoint intervals (first, last), inclusive, in rising order.

    Args: as `DistanceCounts.add`.
    """
    sizes = np.asarray(blocks, dtype=np.int64)
    assert positions.shape == (int(sizes.sum()),)
    ends = np.cumsum(sizes)
    filled = np.flatnonzero(sizes)
    starts, lasts = positions[(ends - sizes)[filled]], positions[ends[filled] - 1]
    assert ((lasts - starts + 1) == sizes[filled]).all(), "blocks are contiguous inside"
    pairs: list[np.ndarray] = []
    for place in np.flatnonzero(filled % 2 == 1):
        # In an earlier block the last token is nearest and the first one farthest; in its own block a token meets
        # itself at 0.
        nearest = np.append(starts[place] - lasts[:place], 0)
        pairs.append(np.stack([nearest, lasts[place] - starts[: place + 1]], axis=1))
    return _merged(np.concatenate(pairs)) if pairs else []


def _merged(intervals: np.ndarray) -> list[tuple[int, int]]:
    """Return the union of intervals, int64 [n, 2], as disjoint ones; neighbours without a gap become one."""
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    begins = np.flatnonzero(np.append(True, intervals[1:, 0] > reach[:-1] + 1))
    lasts = reach[np.append(begins[1:], len(intervals)) - 1]
    return list(zip(intervals[begins, 0].tolist(), lasts.tolist(), strict=True))


def relative_distances(
    samples: Iterable[tuple[str, Sequence[int]]],
    *,
    strategy: Strategy,
    length: int,
    probability: float,
    seed: int,
    epoch: int = 0,
) -> pl.DataFrame:
    """Return the frequency of distances with plain and with skipped positions, in bins.

    Args:
        samples: id and blocks of each sample; repeated for each copy.
        strategy, length, probability: as `skip_positions`.
        seed, epoch: as `position_rng`; the positions are those of this epoch of the training.

    Returns:
        One row per bin of distances: `first` i64 (included), `end` i64 (excluded), `before` and `after` f64, the share
            of the samples that hold a distance of the bin, averaged over its distances. The bins cover 0 to the larger
            of `length` and the longest sample.

    Raises:
        ValueError: as `skip_positions`.
    """
    before, after = DistanceCounts(), DistanceCounts()
    known = list(samples)
    copies = copy_numbers(sample_id for sample_id, _ in known)
    for (sample_id, blocks), copy in zip(known, copies, strict=True):
        rng = position_rng(seed, epoch, sample_id, copy)
        skipped = skip_positions(blocks, strategy=strategy, length=length, probability=probability, rng=rng)
        before.add(blocks, np.arange(skipped.size))
        after.add(blocks, skipped)
    plain, spread = before.counts(), after.counts()
    edges = distance_edges(max(length, plain.size, spread.size))
    shares = {"before": plain, "after": spread}
    columns = {name: _means(counts, edges) / max(1, before.samples) for name, counts in shares.items()}
    return pl.DataFrame({"first": edges[:-1], "end": edges[1:], **columns})


def distance_edges(end: int) -> np.ndarray:
    """Return the edges of bins that cover 0..end-1, int64: first one distance each, then 15 % wide, then 1 % of the
    range.

    Short distances stay visible on a logarithmic axis, and long ones on a linear one.
    """
    edges = [0]
    widest = max(1, int(end * _MOST_OF_RANGE))
    while edges[-1] < end:
        width = min(max(1, int(edges[-1] * _GROWTH)), widest)
        edges.append(min(end, edges[-1] + width))
    return np.asarray(edges, dtype=np.int64)


def _means(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean of `counts` in each bin, float64; distances beyond the end of `counts` count 0."""
    running = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(running[np.minimum(edges, counts.size)]) / np.diff(edges)
