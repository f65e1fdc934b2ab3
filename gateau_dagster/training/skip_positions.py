"""Skipped positions: a short dialogue that spans a long range of position indices (SkipAlign, Wu et al. 2024, 3.2).

Every block of a dialogue, an instruction or a response, is shifted to the right as a whole (Eq. 2), so that positions
are contiguous inside a block and may jump between two blocks. The model then sees distances up to L in samples that
are far shorter.

**Interpretation of Eqs. 2-4.** The paper defines the accumulated bias as `u_i^a = Σ_{j<i} u_j` and the bias of a block
as `u_i = u_{i-1}^a + s_i`. Taken literally, the two contradict the requirement that positions increase. `Σ_{j<i-1} u_j`
leaves out the block just before, so a skip is undone one block later. If the sum includes it, every earlier skip counts
repeatedly until positions pass L. A bias that carries over increases and fits the bound of Eq. 3:
`u_i = u_{i-1} + s_i`, with `s_i = 0` without a skip. The bias of a block is then the sum of the skips up to it. The
bound of Eq. 3 is the room that is left, and the last position is at most L - 1. Eq. 4 names no value for a later block
that does not skip; here it keeps the bias of its predecessor, the least that Eq. 2 permits. Its `i = 0` is the first
block, `c_1`, which is never shifted.

**Resulting distances.** One skip is `s ~ U{1, M}`, `M = L - |m|`. The distance of two tokens on its two sides that were
δ apart is then uniform on {δ + 1, ..., δ + M}. Over all pairs of tokens that is flat from |m| to L - |m| and falls off
within |m| of both ends. With several skips it is not flat, because each one divides what the earlier ones left over.
For M much larger than the number of skips, the k-th skip is M times a product of k independent uniform numbers. It has
the density `(-ln x)^(k-1) / (k-1)!` on x = s/M and the mean M / 2^k, so late skips are short. The room left after k
skips has the same distribution, so the sum of k skips concentrates near M. So does the distance between the first block
and the last. A dialogue of many turns therefore holds mostly long distances to its first turns and short ones between
neighbours. Only `probability` reduces that, because every block that may skip draws on its own.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

Strategy = Literal["all", "inner", "outer"]


def skip_positions(
    blocks: Sequence[int], *, strategy: Strategy, length: int, probability: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the positions of a dialogue after skipping: int64 [sum(blocks)], strictly increasing and below `length`
    (Eq. 2).

    Args:
        blocks: tokens of each block, instruction and response alternating, an instruction first. A block without tokens
            does not skip.
        strategy: which blocks may begin after a skip. `all`: every one but the first; `inner`: responses, so that
            instruction and response move apart; `outer`: instructions but the first, so that turns move apart. A sample
            of a single turn has no second instruction: under `outer` its positions are unchanged, and only `all` and
            `inner` stretch it.
        length: L, positions to spread over. A sample of L tokens or more has no room and keeps its positions 0, 1, 2,
            ..., which for more than L tokens pass L.
        probability: p, the chance of each of these blocks to skip; 0 gives 0, 1, 2, ...
        rng: see `position_rng`. A block that may skip draws one number from it, and one that skips draws a second.

    Raises:
        ValueError: an unknown strategy, a probability outside [0, 1], a length below 1 or a negative block.
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
    room = length - total  # L - |m| - u: what the skips of Eq. 3 may still use
    skips = np.zeros(sizes.size, dtype=np.int64)
    for block in range(1, sizes.size):
        if sizes[block] == 0 or room < 1 or not _may_skip(block, strategy):
            continue
        # ε in (0, 1]: with numpy's [0, 1) a p of 0 would occasionally skip.
        if 1.0 - rng.random() <= probability:
            skips[block] = rng.integers(1, room, endpoint=True)
            room -= int(skips[block])
    return np.arange(total, dtype=np.int64) + np.repeat(np.cumsum(skips), sizes)


def _may_skip(block: int, strategy: Strategy) -> bool:
    """Return DO_SKIP of Eq. 4 for a block after the first; blocks count from 0, so that responses are odd."""
    return strategy == "all" or (block % 2 == 1) == (strategy == "inner")


def position_rng(seed: int, epoch: int, sample_id: str, copy: int = 0) -> np.random.Generator:
    """Return the generator of one sample's skips in one epoch, the same in every process and for any batching.

    copy: see `copy_numbers`; the first one draws the same as the sample without a weight.
    """
    place = f"{epoch}.{copy}" if copy else f"{epoch}"
    key = hashlib.sha256(f"positions/{seed}/{place}/{sample_id}".encode("utf-8", errors="surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(key, "big"))


def copy_numbers(sample_ids: Iterable[str]) -> list[int]:
    """Return how often each id occurred before, in the order of the mix: a sample of weight 2 has the copies 0
    and 1.
    """
    seen: Counter[str] = Counter()
    numbers = []
    for sample_id in sample_ids:
        numbers.append(seen[sample_id])
        seen[sample_id] += 1
    return numbers
