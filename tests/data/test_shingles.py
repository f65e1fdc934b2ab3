"""Shingles against a slow twin: slices of the text in a set."""

import random

import pytest

from gateau_dagster.data.near_duplicates import SHINGLE, normalised, shingles

WORDS = [f"{letter}{ending}" for letter in "abcdefghijklmnopqrst" for ending in ("lpha", "eta", "o", "ümmel", "漢")]


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def slow_shingles(text: bytes) -> list[bytes]:
    """Every slice from a word's beginning, or from that of a character of several bytes."""
    begins = [n for n in range(len(text)) if n == 0 or text[n - 1 : n] == b" " or text[n] >= 0b1100_0000]
    return [(text + b" " * SHINGLE)[n : n + SHINGLE] for n in begins]


@pytest.mark.parametrize(
    "text", ["", "a", "one word after another, and some more", "漢字かな交じり文" * 9, words(1, 90), words(2, 6000)]
)
def test_each_shingle_has_a_hash_of_its_own(text: str) -> None:
    found, slow = shingles(normalised(text)).tolist(), slow_shingles(normalised(text))
    assert len(found) == len(slow)
    assert len({*zip(found, slow, strict=True)}) == len({*found}) == len({*slow})
    assert len({value >> 32 for value in found}) == len({*slow}), "in the half that MinHash takes"


def test_case_white_space_and_unicode_form_do_not_count() -> None:
    copies = ["The café\n\n is OPEN", "the cafe\u0301 is\u00a0open ", "\tＴhe Café is open"]
    assert len({normalised(text) for text in copies}) == 1
    assert normalised("the café is shut") != normalised(copies[0])
