"""Documents packed into rows of at most `pack_length` tokens: bounded-space best fit.

Documents come in the order of the mix. Each goes into the open row with the least room that is enough for it, else into
a row of its own, which is then open too. No more than `OPEN_ROWS` are open: the oldest one closes first. Rows keep the
order in which they were opened, so that a document is trained on at most OPEN_ROWS - 1 rows before the place that it
has in the mix, and the mix stays as random as it was.

Measured (100,000 documents, rows of 65,536 tokens): short conversations with 10 % long samples fill 99.9 % of the rows,
long samples alone (16k tokens in the middle) 98.2 %, lengths spread evenly up to a whole row 95.5 %; 0.2-0.4 s.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence

from gateau_dagster.errors import GateauError

OPEN_ROWS = 64
"""Rows that documents may still join. More fill the rows little better, and move documents farther."""


def pack(lengths: Sequence[int], order: Iterable[int], *, pack_length: int) -> list[list[int]]:
    """Rows of documents, whole ones, each once.

    Args:
        lengths: tokens of each document, all between 1 and `pack_length`.
        order: the documents (indices of `lengths`) as they come.
        pack_length: tokens of a row, at most.

    Returns:
        The documents of each row, those that came first in front.
    """
    rows: list[list[int]] = []
    room: list[int] = []  # of each row, open or closed
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
    """Whether every document fits into a row.

    Raises:
        GateauError: one does not; documents are never cut to be packed.
    """
    longest = max(lengths)
    if longest > pack_length:
        count = sum(length > pack_length for length in lengths)
        raise GateauError(
            f"{count} of {len(lengths)} sequences do not fit into rows of training.pack_length = {pack_length} tokens: "
            f"the longest has {longest}. Raise training.pack_length, or lower training.max_length."
        )
