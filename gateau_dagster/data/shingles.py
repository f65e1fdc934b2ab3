"""Represent a text by its shingles: short hashed pieces, most of which near-duplicates share. Any language."""

from __future__ import annotations

import unicodedata
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]

SHINGLE = 32
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
