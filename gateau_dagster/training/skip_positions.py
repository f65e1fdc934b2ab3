"""Skipped positions: a short dialogue that spans a long range of position indices (SkipAlign, Wu et al. 2024, 3.2).

Every block of a dialogue, an instruction or a response, is shifted to the right as a whole (Eq. 2), so that positions
are contiguous inside a block and may jump between two blocks. The model then sees distances up to L in samples that
are far shorter.

**Interpretation of Eqs. 2-4.** The paper defines the accumulated bias as `u_i^a = Σ_{j<i} u_j` and the bias of a block
as `u_i = u_{i-1}^a + s_i`. Taken literally, the two contradict the requirement that positions increase. `Σ_{j<i-1} u_j`
leaves out the block just before, so a skip is undone one block later. If the sum includes it, every earlier skip counts
repeatedly until positions pass L. A bias that carries over increases and fits the bound of Eq. 3:
`u_i = u_{i-1} + s_i`, with `s_i = 0` without a skip. The bias of a block is then the sum of the skips up to it. The
bound of Eq. 3 is the remaining room, and the last position is at most L - 1. Eq. 4 names no value for a later block
that does not skip. Here the block keeps the bias of its predecessor, the least that Eq. 2 permits. `i = 0` in Eq. 4 is
the first block, `c_1`, which is never shifted.

**Resulting distances.** One skip is `s ~ U{1, M}`, `M = L - |m|`. Two tokens on its two sides, at distance δ before,
then have a distance that is uniform on {δ + 1, ..., δ + M}. Over all pairs of tokens, the distribution is flat from
|m| to L - |m| and falls off within |m| of both ends. With several skips it is not flat, because each skip takes a part
of the room that the earlier ones left. For M much larger than the number of skips, the k-th skip is M times a product
of k independent uniform numbers. It has the density `(-ln x)^(k-1) / (k-1)!` on x = s/M and the mean M / 2^k, so late
skips are short. The room left after k skips has the same distribution, so the sum of k skips concentrates near M. So
does the distance between the first block and the last. A dialogue of many turns therefore holds mostly long distances
to its first turns, and short ones between neighbours. Only `probability` reduces this effect, because each block that
may skip draws independently.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import polars as pl

Strategy = Literal["all", "inner", "outer"]


def skip_positions(
    blocks: Sequence[int], *, strategy: Strategy, length: int, probability: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the positions of a dialogue after skipping (Eq. 2).

    They are int64 [sum(blocks)], strictly increasing and below `length`.

    Args:
        blocks: the tokens of each block; instructions and responses alternate, an instruction first. A block without
            tokens does not skip.
        strategy: the blocks that may begin after a skip. `all`: every block except the first; `inner`: responses, so
            that instruction and response move apart; `outer`: instructions except the first, so that turns move apart.
            A sample of a single turn has no second instruction: under `outer` its positions are unchanged, and only
            `all` and `inner` stretch it.
        length: L, the number of positions to spread over. A sample of L tokens or more has no room and keeps its
            positions 0, 1, 2, ...; a sample of more than L tokens has positions of L and above.
        probability: p, the probability that each of these blocks skips; 0 gives 0, 1, 2, ...
        rng: see `position_rng`. A block that may skip draws one number from it, and one that skips draws a second.

    Raises:
        ValueError: the strategy is unknown, the probability is outside [0, 1], the length is below 1, or a block is
            negative.
    """
    if strategy not in {"all", "inner", "outer"}:
        raise ValueError(f"strategy is {strategy!r}: it has to be all, inner or outer")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability is {probability}: it has to be between 0 and 1")
    if length < 1:
        raise ValueError(f"length is {length}: it has to be at least 1 position")
    sizes = np.asarray(blocks, dtype=np.int64)
    if (sizes < 0).any():
        raise ValueError(f"blocks are {list(blocks)}: no block has fewer than 0 tokens")
    total = int(sizes.sum())
    room = length - total  # L - |m| - u: the room of Eq. 3 for more skips
    skips = np.zeros(sizes.size, dtype=np.int64)
    for block in range(1, sizes.size):
        # DO_SKIP of Eq. 4. Blocks count from 0, so responses have odd numbers.
        may_skip = strategy == "all" or (block % 2 == 1) == (strategy == "inner")
        if sizes[block] == 0 or room < 1 or not may_skip:
            continue
        # ε in (0, 1]: with numpy's [0, 1) a p of 0 would occasionally skip.
        if 1.0 - rng.random() <= probability:
            skips[block] = rng.integers(1, room, endpoint=True)
            room -= int(skips[block])
    return np.arange(total, dtype=np.int64) + np.repeat(np.cumsum(skips), sizes)


def position_rng(seed: int, epoch: int, sample_id: str, copy: int = 0) -> np.random.Generator:
    """Return the generator of one sample's skips in one epoch, the same in every process and for any batching.

    copy: see `copy_numbers`; copy 0 draws the same skips as a sample without a weight.
    """
    place = f"{epoch}.{copy}" if copy else f"{epoch}"
    key = hashlib.sha256(f"positions/{seed}/{place}/{sample_id}".encode("utf-8", errors="surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(key, "big"))


def copy_numbers(sample_ids: Iterable[str]) -> list[int]:
    """Return how often each id occurred before, in the order of the mix; a sample of weight 2 has copies 0 and 1."""
    seen: Counter[str] = Counter()
    numbers = []
    for sample_id in sample_ids:
        numbers.append(seen[sample_id])
        seen[sample_id] += 1
    return numbers


_GROWTH, _MOST_OF_RANGE = 0.15, 0.01
"""The width of a bin is 15 % of its distance, at most 1 % of the whole range."""


class DistanceCounts:
    """The number of samples that hold each distance (section 3.2, Fig. 2).

    A sample counts once for each distance between a response token and a token that it can attend to. Blocks are
    contiguous, so the distances between two blocks form an interval, and those of B blocks at most B² intervals. Memory
    grows only with the largest distance.

    The sets are exact. The paper writes a single turn of l tokens with a skip s as {s, ..., s + l - 1}. The distances
    inside the response are exactly {0, ..., |y| - 1}, and those across the skip {s + 1, ..., s + l - 1}. Without a skip
    both sets together are the paper's: {0, ..., l - 1}.
    """

    def __init__(self) -> None:
        # A sample that holds distances a..b adds 1 at a and -1 at b + 1: the running sum counts samples.
        self._steps = np.zeros(1024, dtype=np.int64)
        self.samples = 0

    def add(self, blocks: Sequence[int], positions: np.ndarray) -> None:
        """Count one sample.

        Args:
            blocks: the tokens of each block; instructions and responses alternate, an instruction first.
            positions: int64 [sum(blocks)], strictly increasing and contiguous inside each block.
        """
        self.samples += 1
        for first, last in distance_intervals(blocks, positions):
            while last + 1 >= self._steps.size:
                self._steps = np.concatenate([self._steps, np.zeros_like(self._steps)])
            self._steps[first] += 1
            self._steps[last + 1] -= 1

    def counts(self) -> np.ndarray:
        """Return the number of samples that hold each distance: int64 [largest distance + 1]."""
        counts = np.cumsum(self._steps)
        held = np.flatnonzero(counts)
        return counts[: int(held[-1]) + 1 if held.size else 0]


def distance_intervals(blocks: Sequence[int], positions: np.ndarray) -> list[tuple[int, int]]:
    """Return the distances that one sample holds, as disjoint intervals (first, last), inclusive, in ascending order.

    The arguments are those of `DistanceCounts.add`.
    """
    sizes = np.asarray(blocks, dtype=np.int64)
    assert positions.shape == (int(sizes.sum()),)
    ends = np.cumsum(sizes)
    filled = np.flatnonzero(sizes)
    starts, lasts = positions[(ends - sizes)[filled]], positions[ends[filled] - 1]
    assert ((lasts - starts + 1) == sizes[filled]).all(), "blocks are contiguous inside"
    pairs: list[np.ndarray] = []
    for place in np.flatnonzero(filled % 2 == 1):
        # In an earlier block the last token is nearest and the first one farthest. Within a block, a token is at
        # distance 0 from itself.
        nearest = np.append(starts[place] - lasts[:place], 0)
        pairs.append(np.stack([nearest, lasts[place] - starts[: place + 1]], axis=1))
    if not pairs:
        return []
    intervals = np.concatenate(pairs)
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reach = np.maximum.accumulate(intervals[:, 1])
    # Neighbours without a gap become one.
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
        samples: the id and blocks of each sample, once per copy.
        strategy, length, probability: see `skip_positions`.
        seed, epoch: see `position_rng`; the positions are those of this epoch.

    Returns:
        One row per bin of distances: `first` i64 (included), `end` i64 (excluded), `before` and `after` f64, the share
            of the samples that hold a distance of the bin, averaged over its distances. The bins cover 0 to the larger
            of `length` and the longest sample.

    Raises:
        ValueError: `skip_positions` refuses an argument.
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
    columns = {"first": edges[:-1], "end": edges[1:]}
    for name, counts in (("before", plain), ("after", spread)):
        running = np.concatenate([[0], np.cumsum(counts)])
        # Distances beyond the end of `counts` count 0.
        means = np.diff(running[np.minimum(edges, counts.size)]) / np.diff(edges)
        columns[name] = means / max(1, before.samples)
    return pl.DataFrame(columns)


def distance_edges(end: int) -> np.ndarray:
    """Return the edges of bins that cover 0..end-1, int64.

    The first bins hold one distance, the next are 15 % of their distance wide, and the last 1 % of the range. So short
    distances are visible on a logarithmic axis, and long ones on a linear axis.
    """
    edges = [0]
    widest = max(1, int(end * _MOST_OF_RANGE))
    while edges[-1] < end:
        width = min(max(1, int(edges[-1] * _GROWTH)), widest)
        edges.append(min(end, edges[-1] + width))
    return np.asarray(edges, dtype=np.int64)
