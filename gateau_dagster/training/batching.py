"""Documents to rows, epoch by epoch: padded, sorted, packed or concatenated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gateau_dagster.training.order import epoch_order, mix_order
from gateau_dagster.training.packing import check_lengths, pack

Batching = Literal["padded", "sorted", "packed", "concatenated"]
"""Rows of one document, those in similar lengths together, rows of several documents that do not see one another, and
rows of several documents that are one sequence (PackedSFT-k in SkipAlign, 3.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One sequence to train on: `row` of the mix in the order of `position`, and the epoch, counted from 0."""

    row: int
    epoch: int


Row = tuple[Document, ...]
"""Documents side by side in one row of tokens; () has no token to learn and fills up a pass."""


def epoch_orders(count: int, *, epochs: float | None, seed: int) -> Iterator[tuple[int, list[int]]]:
    """(epoch, its documents in order): the mix's own order at first, reshuffled in every later epoch.

    Args:
        count: documents.
        epochs: possibly a fraction: documents are rounded, at least one; None for epochs without end.
        seed: of the order.
    """
    wanted = math.inf if epochs is None else max(1, round(count * epochs))
    epoch = 0
    while wanted > epoch * count:
        order = epoch_order(count, epoch=epoch, seed=seed)
        yield epoch, order[: int(min(count, wanted - epoch * count))]
        epoch += 1


def planned_rows(
    lengths: Sequence[int],
    batching: Batching,
    *,
    epochs: float | None,
    per_pass: int,
    pack_length: int | None,
    seed: int,
) -> Iterator[Row]:
    """The rows of all epochs.

    Args:
        lengths: tokens of each document.
        batching: see `Batching`.
        epochs, seed: see `epoch_orders`.
        per_pass: rows that all ranks take at a time.
        pack_length: tokens of a row of several documents; not read for rows of one.

    Raises:
        GateauError: a document is longer than such a row.
    """
    if batching in {"packed", "concatenated"}:
        assert pack_length is not None
        check_lengths(lengths, pack_length=pack_length)
    for epoch, order in epoch_orders(len(lengths), epochs=epochs, seed=seed):
        if batching == "padded":
            yield from padded_rows(order, epoch)
        elif batching == "sorted":
            yield from sorted_rows(order, epoch, lengths=lengths, per_pass=per_pass, seed=seed)
        else:
            assert pack_length is not None
            yield from packed_rows(order, epoch, lengths=lengths, pack_length=pack_length)


def padded_rows(order: Sequence[int], epoch: int) -> Iterator[Row]:
    """Rows of one document, as they come."""
    return ((Document(row=each, epoch=epoch),) for each in order)


def sorted_rows(order: Sequence[int], epoch: int, *, lengths: Sequence[int], per_pass: int, seed: int) -> Iterator[Row]:
    """Rows of one document, those of a pass of similar length (LongAlign's sorted batching).

    Documents are sorted by length and cut into groups of `per_pass`, what all ranks take at a time; the groups come in
    random order. Where they do not divide, () rows fill up the group of the shortest documents: none is left out.
    """
    longest_first = sorted(order, key=lambda each: -lengths[each])
    groups = [longest_first[start : start + per_pass] for start in range(0, len(order), per_pass)]
    for number in mix_order([("batch", f"{epoch}/{number}") for number in range(len(groups))], seed):
        yield from padded_rows(groups[number], epoch)
        yield from [()] * (per_pass - len(groups[number]))


def packed_rows(order: Sequence[int], epoch: int, *, lengths: Sequence[int], pack_length: int) -> Iterator[Row]:
    """Rows of whole documents, see packing.py; every epoch is packed anew."""
    for row in pack(lengths, order, pack_length=pack_length):
        yield tuple(Document(row=each, epoch=epoch) for each in row)
