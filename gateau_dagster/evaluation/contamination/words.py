"""Hash the words and the n-grams of a text, regardless of case, punctuation and white space."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gateau_dagster.data.shingles import Hashes, mixed

SHINGLE_WORDS = 3
"""Words of a shingle. Near-duplicates share many: two texts with one word in ten changed share half."""
_CODES = 0x40000
"""Code points from here on are not writing: tags, private use."""
_BLANK, _LETTER, _ALONE = range(3)
# Scripts without blanks between words, where each character counts as a word: kana, ideographs, and those of South-East
# Asia. Korean has blanks.
_WITHOUT_BLANKS = (
    *((0x0E00, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800), (0x3005, 0x3008), (0x3040, 0x3100), (0x31F0, 0x3200)),
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, _CODES)),
)
_FACTOR = 0x9E3779B97F4A7C15


def words(text: str) -> Hashes:
    """Return one hash for each word, in order; equal words have equal hashes.

    A word is a run of letters, digits and their marks. In scripts without blanks between words it is a single
    character.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        codes = np.frombuffer(folded.encode("ascii"), dtype=np.uint8)
    else:
        points = np.frombuffer(folded.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
        codes = np.minimum(points, np.uint32(_CODES - 1))
    kinds = _kinds().take(codes)
    begins = kinds != _BLANK
    begins[1:] &= (kinds[1:] == _ALONE) | (kinds[:-1] != _LETTER)
    starts = np.flatnonzero(begins)
    # Characters between two words have the value 0 and extend the first word.
    return mixed(_polynomials(_values().take(codes), starts, np.append(starts, codes.size)[1:]))


def ngrams(of: Hashes, length: int) -> Hashes:
    """Return one hash for every `length` words in a row, in order; none where there are fewer words."""
    count = max(0, of.size - length + 1)
    return mixed(_polynomials(of, slice(count), slice(length, length + count)) + np.uint64(length))


def shingles(*parts: Hashes) -> Hashes:
    """Return the hashes of the shingles of a text's parts, by which near-duplicates are found."""
    return np.concatenate([ngrams(part, SHINGLE_WORDS) for part in parts])


def _polynomials(values: Hashes, begins: Any, ends: Any) -> Hashes:
    """Return the sum of `values[begin + i]` times the factor's i-th power, modulo 2^64, from each begin to its end.

    Each sum is a difference of one running sum, multiplied by the inverse of the factor's power at the begin.
    """
    powers, inverses = _powers(1 << max(0, values.size - 1).bit_length())
    sums = np.zeros(values.size + 1, dtype=np.uint64)
    np.cumsum(values * powers[: values.size], out=sums[1:])
    return (sums[ends] - sums[begins]) * inverses[begins]


@cache
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the first powers of the factor and of its inverse modulo 2^64; `count` doubles, so few are computed."""
    both = (np.full(count, factor, dtype=np.uint64) for factor in (_FACTOR, pow(_FACTOR, -1, 1 << 64)))
    one, other = (np.cumprod(each) for each in both)
    return one, other


@cache
def _kinds() -> npt.NDArray[np.uint8]:
    """Return the kind of each code point."""
    kinds = np.array([unicodedata.category(chr(code))[0] in "LNM" for code in range(_CODES)], dtype=np.uint8) * _LETTER
    for first, end in _WITHOUT_BLANKS:
        kinds[first:end] *= _ALONE
    return kinds.astype(np.uint8)


@cache
def _values() -> Hashes:
    """Return a pseudo-random value for each code point, 0 for those that are in no word."""
    return mixed(np.arange(1, _CODES + 1, dtype=np.uint64)) * (_kinds() != _BLANK)
