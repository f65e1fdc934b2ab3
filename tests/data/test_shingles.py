"""Shingles against a slow twin: slices of the text in a set, and Jaccard by its definition."""

import random

import pytest

from gateau_dagster.data.shingles import KEPT, SHINGLE, normalised, similarity, sketch

WORDS = [f"{letter}{ending}" for letter in "abcdefghijklmnopqrst" for ending in ("lpha", "eta", "o", "ümmel", "漢")]


def words(seed: int, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def slow_shingles(text: bytes) -> set[bytes]:
    """Every slice from a word's beginning, or from that of a character of several bytes."""
    begins = [n for n in range(len(text)) if n == 0 or text[n - 1 : n] == b" " or text[n] >= 0b1100_0000]
    return {(text + b" " * SHINGLE)[n : n + SHINGLE] for n in begins}


def slow_similarity(one: str, other: str) -> float:
    first, second = slow_shingles(normalised(one)), slow_shingles(normalised(other))
    return len(first & second) / len(first | second)


def similarity_of(one: str, other: str) -> float:
    return similarity(*(sketch(normalised(text)) for text in (one, other)))


@pytest.mark.parametrize(
    "text", ["", "a", "one word after another, and some more", "漢字かな交じり文" * 9, words(1, 90)]
)
def test_a_sketch_has_a_hash_for_each_shingle(text: str) -> None:
    found = sketch(normalised(text))
    assert len(found) == len(slow_shingles(normalised(text))) < KEPT
    assert found.tolist() == sorted(set(found.tolist()))


def test_case_white_space_and_unicode_form_do_not_count() -> None:
    copies = ["The café\n\n is OPEN", "the cafe\u0301 is\u00a0open ", "\tＴhe Café is open"]
    assert len({normalised(text) for text in copies}) == 1
    assert normalised("the café is shut") != normalised(copies[0])


@pytest.mark.parametrize("seed", range(5))
def test_similarity_is_exact_while_a_sketch_holds_every_shingle(seed: int) -> None:
    one = words(seed, 100).split()
    other = one[: 30 + 10 * seed] + words(seed + 10, 20).split() + one[60:]
    pair = " ".join(one), " ".join(other)
    assert similarity_of(*pair) == pytest.approx(slow_similarity(*pair), abs=1e-12)
    assert similarity_of(pair[0], words(99, 80)) == slow_similarity(pair[0], words(99, 80)) == 0.0


@pytest.mark.parametrize("changed", [0, 10, 40, 150, 600])
def test_similarity_of_long_texts_is_near_its_definition(changed: int) -> None:
    one = words(3, 6000).split()
    other = list(one)
    for place in random.Random(changed).sample(range(len(one)), changed):
        other[place] = "changed"
    pair = " ".join(one), " ".join(other)
    assert len(slow_shingles(normalised(pair[0]))) > 10 * KEPT
    assert similarity_of(*pair) == pytest.approx(slow_similarity(*pair), abs=0.12)


def test_a_sketch_does_not_grow_with_the_text() -> None:
    assert sketch(normalised(words(5, 5000))).size == KEPT
    assert sketch(b"").size == 0 and similarity(sketch(b""), sketch(b"")) == 1.0
