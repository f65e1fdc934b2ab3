"""Find near-duplicates among texts by MinHash, and group them."""

# Why MinHash: a digest finds equal texts only, and copies differ in a header or a date. To compare all pairs of shingle
# sets would take quadratic time, and memory for all shingles. A sketch has a fixed size. Bands of equal hashes name the
# few pairs that are worth a comparison.
#
# What it costs: MISSED of the pairs right at the threshold, and the error of an estimate. Both are harmless here: a
# pair at the threshold could be counted either way.
#
# When another way is better: suffix arrays find a shared passage of any length inside long texts that differ otherwise.
# Embeddings find paraphrases, at the price of a model.

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from gateau_dagster.data.sample import SHORTEST_DOCUMENT

if TYPE_CHECKING:  # imported on use: it imports much of scipy, which costs every command a second
    from datasketch import LeanMinHash, MinHash


Hashes: TypeAlias = npt.NDArray[np.uint64]

SHINGLE = SHORTEST_DOCUMENT
"""Bytes per shingle: five or six words of English, about ten characters of Chinese."""
_BLANK = ord(" ")
# First byte of a multi-byte character: text without blanks between words has a shingle at each character.
_SEVERAL = 0xC0
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)


def normalised(text: str) -> bytes:
    """Return the text as copies share it: without case, and with one blank for any white space between words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).encode("utf-8", errors="surrogatepass")


def shingles(text: bytes) -> Hashes:
    """Return the hash of each shingle of a normalised text, in order.

    A shingle is `SHINGLE` bytes from the start of a word, or of a multi-byte character; blanks follow the text.
    """
    letters = np.frombuffer(b" " + text + b" " * SHINGLE, dtype=np.uint8)
    size = len(text)
    begins = (letters[:size] == _BLANK) | (letters[1 : size + 1] >= _SEVERAL)
    windows = np.lib.stride_tricks.sliding_window_view(letters[1:], SHINGLE)[np.flatnonzero(begins)]
    # Windows are mixed before the sum: windows that differ in some letters only would otherwise often have equal sums.
    return mixed((mixed(windows.view("<u8")) * _FACTORS).sum(axis=1, dtype=np.uint64))


def mixed(values: Hashes) -> Hashes:
    """Return hashes in which every bit depends on every bit of the value (splitmix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


Lookup: TypeAlias = "Callable[[LeanMinHash], list[int]]"
"""A function from a sketch to the numbers of its possible near-duplicates, in ascending order."""

HASHES = 256
"""Hashes per sketch, 1 KiB: the standard error of a similarity estimate is at most 0.03."""
MISSED = 0.02
"""The largest share of pairs at the similarity threshold that the lookup misses; it misses fewer above it."""
_BATCH = 4096  # shingles at a time: 8 MiB


def sketch(shingles: Hashes) -> LeanMinHash:
    """Return the MinHash (Broder, 1997) of a text's shingles; equal hashes estimate the Jaccard similarity of texts."""
    from datasketch import LeanMinHash

    found = _of_nothing().copy()
    for start in range(0, shingles.size, _BATCH):
        found.update_batch((shingles[start : start + _BATCH] >> 32).tolist())
    return LeanMinHash(found)


def lookup(sketches: Sequence[LeanMinHash], least: float) -> Lookup:
    """Return a function that finds sketches whose similarity may be `least` (in 0..1) or more; see MISSED.

    A text without shingles is similar to none, not even to another such text.
    """
    from datasketch import MinHashLSH

    index = MinHashLSH(num_perm=HASHES, params=_bands(least))
    for number, each in enumerate(sketches):
        index.insert(number, each)
    return lambda wanted: [] if wanted.is_empty() else sorted(cast("list[int]", index.query(wanted)))


def near_duplicates(sketches: Sequence[LeanMinHash], least: float) -> list[int]:
    """Return the group of each text, by its first member; two members may be similar only through others.

    Every pair that `lookup` finds and whose estimated similarity is at least `least` is joined. Pairs that are in one
    group already are not compared, so that many copies of a text take linear time.
    """
    groups = _Groups(sketches, least)
    bands, rows = _bands(least)
    # Band by band: the tables of one band are in memory at a time, and not those of all, as in `lookup`.
    for start in range(0, bands * rows, rows):
        found: dict[bytes, list[list[int]]] = {}  # texts with an equal band, by group
        for number, each in enumerate(sketches):
            if not each.is_empty():
                groups.enter(found.setdefault(each.hashvalues[start : start + rows].tobytes(), []), number)
    return [groups.of(number) for number in range(len(sketches))]


class _Groups:
    """Groups of sketches that grow by joining (union-find)."""

    def __init__(self, sketches: Sequence[LeanMinHash], least: float) -> None:
        self._sketches, self._least = sketches, least
        self._first = list(range(len(sketches)))

    def of(self, number: int) -> int:
        """Return the group of a sketch, by its first member."""
        first = self._first
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    def enter(self, bucket: list[list[int]], number: int) -> None:
        """Join a sketch with similar ones of a bucket, and add it. `bucket`: members by group."""
        own, others = [number], []
        for members in bucket:
            if self._joined(number, members):
                # The shorter list goes into the longer one, so that many copies of a text do not cost quadratic time.
                own, less = (members, own) if len(members) > len(own) else (own, members)
                own += less
            else:
                others.append(members)
        bucket[:] = [*others, own]

    def _joined(self, number: int, members: list[int]) -> bool:
        """Return whether the sketch is in their group; join it if it is similar to one of them."""
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
    # Cached, since drawing the permutations takes longer than hashing a short text. The hash function is the identity:
    # shingles are hashes already.
    from datasketch import MinHash

    return MinHash(num_perm=HASHES, hashfunc=int)


@cache
def _bands(least: float) -> tuple[int, int]:
    # Two sketches are compared if a band is equal. A band has as many rows as MISSED allows, so that few are compared.
    missed = {rows: (1 - least**rows) ** (HASHES // rows) for rows in range(1, HASHES // 2 + 1)}
    rows = max(rows for rows, share in missed.items() if rows == 1 or share <= MISSED)
    return HASHES // rows, rows
