"""Order the sequences and pack them into rows."""

import hashlib
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gateau_dagster.errors import GateauError

OPEN_ROWS = 64
"""The number of rows that documents may still join. More would fill rows little better, and move documents farther."""
Batching = Literal["padded", "sorted", "packed", "concatenated"]
"""Rows of one document, in given order or with similar lengths together; rows of several documents that do not see one
another; and rows of several documents that are one sequence (PackedSFT-k in SkipAlign, 3.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixDocument:
    """One sequence to train on: `row` of the mix in the order of `position`, and the epoch, counted from 0."""

    row: int
    epoch: int


Row = tuple[MixDocument, ...]
"""The documents of one row of tokens, side by side; () has no token to learn and fills up a pass."""


def planned_rows(
    lengths: Sequence[int],
    batching: Batching,
    *,
    epochs: float | None,
    per_pass: int,
    pack_length: int | None,
    seed: int,
) -> Iterator[Row]:
    """Yield the rows of all epochs.

    Args:
        lengths: tokens of each document.
        batching: see `Batching`.
        epochs, seed: see `epoch_orders`.
        per_pass: rows that all ranks take at a time.
        pack_length: tokens of a row of several documents; ignored for rows of one.

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
    """Yield rows of one document, in the given order."""
    return ((MixDocument(row=each, epoch=epoch),) for each in order)


def sorted_rows(order: Sequence[int], epoch: int, *, lengths: Sequence[int], per_pass: int, seed: int) -> Iterator[Row]:
    """Yield rows of one document, those of a pass of similar length (LongAlign's sorted batching).

    Documents are sorted by length and cut into groups of `per_pass`, the rows that all ranks take at a time. The groups
    come in random order. If the documents do not divide evenly, () rows fill up the group of the shortest ones, so that
    none is left out.
    """
    longest_first = sorted(order, key=lambda each: -lengths[each])
    groups = [longest_first[start : start + per_pass] for start in range(0, len(order), per_pass)]
    for number in mix_order([("batch", f"{epoch}/{number}") for number in range(len(groups))], seed):
        yield from padded_rows(groups[number], epoch)
        yield from [()] * (per_pass - len(groups[number]))


def packed_rows(order: Sequence[int], epoch: int, *, lengths: Sequence[int], pack_length: int) -> Iterator[Row]:
    """Yield rows of whole documents, see `pack`; every epoch is packed by itself."""
    for row in pack(lengths, order, pack_length=pack_length):
        yield tuple(MixDocument(row=each, epoch=epoch) for each in row)


def pack(lengths: Sequence[int], order: Iterable[int], *, pack_length: int) -> list[list[int]]:
    """Pack whole documents into rows, each once.

    Args:
        lengths: tokens of each document, all between 1 and `pack_length`.
        order: the documents (indices of `lengths`) in input order.
        pack_length: tokens of a row, at most.

    Returns:
        The documents of each row, in input order.
    """
    rows: list[list[int]] = []
    room: list[int] = []  # free tokens of each row, open or closed
    open_rows: deque[int] = deque()  # the oldest first
    by_room: list[tuple[int, int]] = []  # (room, row) of the open rows, sorted
    for document in order:
        length = lengths[document]
        assert 0 < length <= pack_length, (document, length)
        place = bisect_left(by_room, (length, -1))
        if place < len(by_room):
            _, row = by_room.pop(place)
        else:
            row = len(rows)
            rows.append([])
            room.append(pack_length)
            open_rows.append(row)
        rows[row].append(document)
        room[row] -= length
        insort(by_room, (room[row], row))
        if len(open_rows) > OPEN_ROWS:
            oldest = open_rows.popleft()
            del by_room[bisect_left(by_room, (room[oldest], oldest))]
    return rows


def check_lengths(lengths: Sequence[int], *, pack_length: int) -> None:
    """Check that every document fits into a row.

    Raises:
        GateauError: one does not; documents are never cut for packing.
    """
    longest = max(lengths)
    if longest > pack_length:
        count = sum(length > pack_length for length in lengths)
        raise GateauError(
            "training.pack_length",
            f"{count} of {len(lengths)} sequences do not fit into rows of training.pack_length = {pack_length} tokens: "
            f"the longest has {longest}. Raise training.pack_length, or lower training.max_length.",
        )


def epoch_orders(count: int, *, epochs: float | None, seed: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (epoch, its documents in order): first the mix's own order, reshuffled in every later epoch.

    Args:
        count: documents.
        epochs: possibly a fraction: documents are rounded, at least one; None for endless epochs.
        seed: of the order.
    """
    wanted = math.inf if epochs is None else max(1, round(count * epochs))
    epoch = 0
    while wanted > epoch * count:
        order = epoch_order(count, epoch=epoch, seed=seed)
        yield epoch, order[: int(min(count, wanted - epoch * count))]
        epoch += 1


def epoch_order(count: int, *, epoch: int, seed: int) -> list[int]:
    """Return rows 0..count-1 in the order of `epoch`: first the mix's own order, reshuffled in every later one."""
    if epoch == 0:
        return list(range(count))
    return sorted(range(count), key=lambda row: _place("epoch", seed, epoch, row))


def mix_order(keys: Sequence[tuple[str, str]], seed: int) -> list[int]:
    """Return the indices of `keys` (origin, sample_id) shuffled by hash: any two keep their order whatever else
    exists.
    """
    return sorted(range(len(keys)), key=lambda index: _place("mix", seed, *keys[index]))


def _place(*key: object) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in key).encode("utf-8", errors="surrogatepass")).digest()
