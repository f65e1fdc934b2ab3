"""Which samples are held out, and the ranges of context length that they are taken from."""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from gateau_dagster.errors import GateauError

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


def heldout_ids(
    raw: pl.DataFrame, lengths: pl.DataFrame, selected: pl.DataFrame, *, count: int, buckets: Buckets
) -> list[str]:
    """Ids of `count` held-out samples: never trained on, taken evenly from the length buckets, in order of id.

    `raw`: `sample_id`, `digest`. `lengths`: `sample_id`, `context_tokens` (samples without a score cannot be measured
    either). `selected`: `sample_id`, `digest`; a sample with the content of a selected one is not held out.

    The order within a bucket is that of a hash of the id: stable when other samples come and go, and no seed.
    Raises GateauError when nothing is left.
    """
    free = _free(raw, selected).join(lengths.select("sample_id", "context_tokens"), on="sample_id", how="inner")
    if free.is_empty():
        raise GateauError(
            "evaluation/heldout: every scored sample was selected for training, none is left to hold out. Lower "
            "selection.fraction (or count), or take heldout out of evaluation.benchmarks."
        )
    queues: list[list[str]] = [[] for _ in buckets.labels]
    for sample_id, tokens in sorted(
        free.select("sample_id", "context_tokens").iter_rows(), key=lambda row: _order(row[0])
    ):
        queues[buckets.index(tokens)].append(sample_id)
    return sorted(_deal(queues, count))


def candidates(raw: pl.DataFrame, selected: pl.DataFrame, *, count: int) -> list[str]:
    """Ids that `heldout_ids` may take where no table says how long the samples are: the first of them in its order.

    `OFFERED` times `count`, so that only their texts have to be counted.
    """
    return sorted(_free(raw, selected)["sample_id"], key=_order)[: OFFERED * count]


def _free(raw: pl.DataFrame, selected: pl.DataFrame) -> pl.DataFrame:
    """`sample_id`, `digest`: neither selected nor of a selected sample's content, and each content once."""
    return (
        raw.select("sample_id", "digest")
        .sort("sample_id")
        .join(selected.select("sample_id"), on="sample_id", how="anti")
        .join(selected.select("digest"), on="digest", how="anti")
        .unique("digest", keep="first", maintain_order=True)
    )


def _order(sample_id: str) -> str:
    return hashlib.sha256(f"heldout:{sample_id}".encode()).hexdigest()


def _deal(queues: Sequence[list[str]], count: int) -> list[str]:
    """One from each queue in turn, until `count` are dealt or all queues are empty."""
    longest = max(len(queue) for queue in queues)
    dealt = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return dealt[:count]
