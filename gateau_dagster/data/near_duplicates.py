"""Which texts of many are one and the same but for small changes: by MinHash, and groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

from gateau_dagster.data.shingles import Hashes

if TYPE_CHECKING:  # imported where it is used: it brings much of scipy, a second for every command
    from datasketch import LeanMinHash, MinHash

Lookup: TypeAlias = "Callable[[LeanMinHash], list[int]]"
"""From a sketch to the numbers of those that may be near-duplicates of it, rising."""

HASHES = 256
"""Of a sketch, 1 KiB: the similarity of two texts is estimated with a standard error of at most 0.03."""
MISSED = 0.02
"""Of pairs that are just similar enough at most as many are not looked at, and hardly any of those that are more so."""
_BATCH = 4096  # shingles at a time: 8 MiB


def sketch(shingles: Hashes) -> LeanMinHash:
    """MinHash (Broder, 1997) of a text's shingles: how many hashes two have in common is their Jaccard similarity."""
    from datasketch import LeanMinHash

    found = _of_nothing().copy()
    for start in range(0, shingles.size, _BATCH):
        found.update_batch((shingles[start : start + _BATCH] >> 32).tolist())
    return LeanMinHash(found)


def lookup(sketches: Sequence[LeanMinHash], least: float) -> Lookup:
    """Finds those whose similarity to a sketch may be `least` (in 0..1) or more; see MISSED.

    What has no shingles is like nothing, not even like its own kind.
    """
    from datasketch import MinHashLSH

    index = MinHashLSH(num_perm=HASHES, params=_bands(least))
    for number, each in enumerate(sketches):
        index.insert(number, each)
    return lambda wanted: [] if wanted.is_empty() else sorted(cast("list[int]", index.query(wanted)))


def near_duplicates(sketches: Sequence[LeanMinHash], least: float) -> list[int]:
    """The group of each text, by its first member; what two texts of a group have in common may go by way of others.

    Every pair that `lookup` finds and whose estimated similarity is at least `least` is joined; pairs that are of one
    group by way of others are not looked at, so that many copies of a text take a time in proportion to their number.
    """
    groups = _Groups(sketches, least)
    bands, rows = _bands(least)
    for start in range(0, bands * rows, rows):
        found: dict[bytes, list[list[int]]] = {}  # of a band, those whose hashes are equal, by group
        for number, each in enumerate(sketches):
            if not each.is_empty():
                groups.enter(found.setdefault(each.hashvalues[start : start + rows].tobytes(), []), number)
    return [groups.of(number) for number in range(len(sketches))]


class _Groups:
    """Groups of sketches (union-find), which grow together."""

    def __init__(self, sketches: Sequence[LeanMinHash], least: float) -> None:
        self._sketches, self._least = sketches, least
        self._first = list(range(len(sketches)))

    def of(self, number: int) -> int:
        """A sketch's group, by its first member."""
        first = self._first
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    def enter(self, bucket: list[list[int]], number: int) -> None:
        """Join a sketch with those of a bucket that are alike. `bucket`: members by group; it is added to them."""
        own, others = [number], []
        for members in bucket:
            if self._joined(number, members):
                own, less = (members, own) if len(members) > len(own) else (own, members)
                own += less
            else:
                others.append(members)
        bucket[:] = [*others, own]

    def _joined(self, number: int, members: list[int]) -> bool:
        """Whether it is of their group, or becomes so as it is like one of them."""
        one, two = sorted((self.of(number), self.of(members[0])))
        if one == two:
            return True
        sketch = self._sketches[number]
        if not any(sketch.jaccard(self._sketches[each]) >= self._least for each in reversed(members)):
            return False
        self._first[two] = one
        return True


@cache
def _of_nothing() -> MinHash:
    """Drawing the permutations takes longer than a short text's hashes. Shingles are hashes already."""
    from datasketch import MinHash

    return MinHash(num_perm=HASHES, hashfunc=int)


@cache
def _bands(least: float) -> tuple[int, int]:
    """How many bands of how many hashes: two sketches are compared where all hashes of some band are equal."""
    missed = {rows: (1 - least**rows) ** (HASHES // rows) for rows in range(1, HASHES // 2 + 1)}
    rows = max(rows for rows, share in missed.items() if rows == 1 or share <= MISSED)
    return HASHES // rows, rows
