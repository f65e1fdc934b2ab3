"""A text by its shingles: short pieces, hashed, of which near-duplicates have most in common. Any language."""

from __future__ import annotations

import unicodedata
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Sketch: TypeAlias = npt.NDArray[np.uint64]

SHINGLE = 32
"""Bytes of a shingle: five or six words of English, about ten characters of Chinese."""
KEPT = 256
"""Hashes of a sketch: two long texts' similarity is estimated with a standard error of at most 0.03."""
_MANY = 8
_BLANK = ord(" ")
# Where a character of several bytes begins: what has no blanks between its words has a shingle at each character.
_SEVERAL = 0xC0
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64)


def normalised(text: str) -> bytes:
    """What copies of a text have in common: without case, and with one blank for any white space between words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).encode("utf-8", errors="surrogatepass")


def sketch(text: bytes) -> Sketch:
    """The `KEPT` smallest hashes of a normalised text's shingles, rising; all where there are no more.

    A shingle is `SHINGLE` bytes from where a word begins, or a character of several bytes; blanks follow the text.
    """
    letters = np.frombuffer(b" " + text + b" " * SHINGLE, dtype=np.uint8)
    size = len(text)
    begins = (letters[:size] == _BLANK) | (letters[1 : size + 1] >= _SEVERAL)
    windows = np.lib.stride_tricks.sliding_window_view(letters[1:], SHINGLE)[np.flatnonzero(begins)]
    return smallest(mixed((windows.view("<u8") * _FACTORS).sum(axis=1, dtype=np.uint64)))


def smallest(hashes: Sketch) -> Sketch:
    """The `KEPT` smallest, rising, each once."""
    if hashes.size > _MANY * KEPT:
        # Drawn by lot, some `_MANY` / 2 times as many as are kept lie below this; where many are equal, fewer may.
        low = _distinct(hashes[hashes < np.uint64((_MANY * KEPT << 63) // hashes.size)])
        if low.size >= KEPT:
            return low[:KEPT]
    return _distinct(hashes)[:KEPT]


def _distinct(hashes: Sketch) -> Sketch:
    """Rising."""
    rising = np.sort(hashes)
    return rising[np.diff(rising, prepend=rising[:1] - np.uint64(1)) != 0]


def mixed(values: Sketch) -> Sketch:
    """Every bit depends on every bit of the value, so that the smallest are drawn by lot (splitmix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def similarity(one: Sketch, other: Sketch) -> float:
    """Jaccard: the share of the two texts' shingles that both have; exact where both sketches hold all of them.

    Else an estimate: the share of common ones among the smallest `KEPT` of both together.
    """
    union = np.union1d(one, other)
    if KEPT in (one.size, other.size):
        union = union[:KEPT]
    common = np.intersect1d(one, other, assume_unique=True)
    return float(np.count_nonzero(common <= union[-1]) / union.size) if union.size else 1.0
