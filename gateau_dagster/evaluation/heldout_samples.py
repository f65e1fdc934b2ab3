"""Which of the reserved samples are measured, and the ranges of context length that they are taken from."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

OFFERED = 16


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of context tokens: up to and including each upper end, and one above the last."""

    ends: tuple[int, ...]

    @classmethod
    def of(cls, ends: Iterable[int]) -> "Buckets":
        """The ends in order, each once."""
        return cls(ends=tuple(sorted(set(ends))))

    def index(self, tokens: int) -> int:
        """Which range `tokens` lies in, from 0."""
        return bisect_left(self.ends, tokens)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each range, in order: `0–512`, `513–1,024`, `over 1,024`."""
        starts = (0, *(end + 1 for end in self.ends))
        ranges = [f"{start:,}–{end:,}" for start, end in zip(starts, self.ends, strict=False)]
        return (*ranges, f"over {self.ends[-1]:,}")


def heldout_ids(reserved: pl.DataFrame, lengths: pl.DataFrame, *, count: int, buckets: Buckets) -> list[str]:
    """Ids of `count` of the reserved samples, taken evenly from the length buckets, in order of id.

    `reserved`: `sample_id`, `digest`; each content is taken once. `lengths`: `sample_id`, `context_tokens`; the others
    are left out.

    The order within a bucket is that of a hash of the id: stable when other samples come and go, and no seed.
    """
    known = _each_once(reserved).join(lengths.select("sample_id", "context_tokens"), on="sample_id", how="inner")
    queues: list[list[str]] = [[] for _ in buckets.labels]
    for sample_id, tokens in sorted(
        known.select("sample_id", "context_tokens").iter_rows(), key=lambda row: _order(row[0])
    ):
        queues[buckets.index(tokens)].append(sample_id)
    return sorted(_deal(queues, count))


def candidates(reserved: pl.DataFrame, *, count: int) -> list[str]:
    """Ids that `heldout_ids` may take: the first of `reserved` in its order.

    `OFFERED` times `count`, so that only their texts have to be counted.
    """
    return sorted(_each_once(reserved)["sample_id"], key=_order)[: OFFERED * count]


def _each_once(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.sort("sample_id").unique("digest", keep="first", maintain_order=True)


def _order(sample_id: str) -> str:
    return hashlib.sha256(f"heldout:{sample_id}".encode()).hexdigest()


def _deal(queues: Sequence[list[str]], count: int) -> list[str]:
    """One from each queue in turn, until `count` are dealt or all queues are empty."""
    longest = max(len(queue) for queue in queues)
    dealt = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return dealt[:count]
