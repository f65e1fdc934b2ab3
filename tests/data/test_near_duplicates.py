"""Sketches against Jaccard by its definition, groups and shingles against slow twins."""

import random
import sys

import numpy as np
import pytest
from datasketch import LeanMinHash

from gateau_dagster.data.near_duplicates import (
    HASHES,
    MISSED,
    SHINGLE,
    lookup,
    near_duplicates,
    normalised,
    shingles,
    sketch,
)


def sketch_of(text: str) -> LeanMinHash:
    return sketch(shingles(normalised(text)))


def slow_similarity(one: str, other: str) -> float:
    first, second = ({*slow_shingles(normalised(text))} for text in (one, other))
    return len(first & second) / len(first | second)


def slow_groups(sketches: list[LeanMinHash], least: float) -> list[int]:
    alike = [[n for n, other in enumerate(sketches) if each.jaccard(other) >= least] for each in sketches]
    found = []
    for number in range(len(sketches)):
        reached, waiting = {number}, [number]
        while waiting:
            more = {*alike[waiting.pop()]} - reached
            reached |= more
            waiting += more
        found.append(min(reached))
    return found


def groups_by_neighbours(sketches: list[LeanMinHash], least: float) -> list[int]:
    """Joins each with all that `lookup` finds for it: quadratic in the number of copies."""
    group, alike = list(range(len(sketches))), lookup(sketches, least)
    for number, each in enumerate(sketches):
        for other in alike(each):
            one, two = sorted((group[number], group[other]))
            if one != two and each.jaccard(sketches[other]) >= least:
                group = [one if member == two else member for member in group]
    return group


def edited(text: str, changes: int, seed: int) -> str:
    pieces = text.split()
    for place in random.Random(seed).sample(range(len(pieces)), min(changes, len(pieces))):
        pieces[place] = f"x{seed}"
    return " ".join(pieces)


def many_texts(seed: int, length: int) -> list[str]:
    """Texts with a phrase in common, most of them with copies that have few or many words changed."""
    phrase = words(1000, length // 4)
    texts = []
    for number in range(12):
        text = f"{phrase} {words(100 * seed + number, length)}"
        copies = [edited(text, changes, number) for changes in (1, length // 30, length // 12, length // 6)]
        texts += [text, *copies[: number % 5]]
    random.Random(seed).shuffle(texts)
    return texts


@pytest.mark.parametrize("length", [20, 100, 6000])
@pytest.mark.parametrize("changed", [0, 0.002, 0.01, 0.03, 0.1])
def test_similarity_is_near_its_definition(length: int, changed: float) -> None:
    one = words(3, length)
    other = edited(one, round(changed * length), 5)
    assert sketch_of(one).jaccard(sketch_of(other)) == pytest.approx(slow_similarity(one, other), abs=0.12)
    assert sketch_of(one).jaccard(sketch_of(words(99, length))) == slow_similarity(one, words(99, length)) == 0


def test_a_sketch_is_that_of_the_set_however_it_comes() -> None:
    found = shingles(normalised(words(5, 9000)))
    assert found.size > 8192, "some batches"
    assert sketch(found).jaccard(sketch(found[::-1].repeat(2))) == 1
    assert len(sketch(found)) == HASHES


@pytest.mark.parametrize("least", [0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize(("seed", "length"), [(1, 12), (2, 60), (3, 600)])
def test_groups_are_those_of_the_twin(seed: int, length: int, least: float) -> None:
    sketches = [sketch_of(text) for text in many_texts(seed, length)]
    found = near_duplicates(sketches, least)
    assert found == slow_groups(sketches, least)
    assert 1 < len(set(found)) <= len(found)


@pytest.mark.parametrize("least", [0.02, 0.1, 0.5, 0.8, 0.95, 1.0])
def test_few_pairs_are_missed_that_are_just_alike(least: float) -> None:
    missed, pairs = 0, 150
    for seed in range(pairs):
        both = [*range(seed * 10_000, seed * 10_000 + 1000)]
        common = round(2000 * least / (1 + least))
        other = [*both[:common], *range(10**9 + seed * 10_000, 10**9 + seed * 10_000 + 1000 - common)]
        one, two = (sketch(shingles(normalised(" ".join(map(str, each))))) for each in (both, other))
        missed += lookup([one], least)(two) != [0]
    assert missed / pairs <= 3 * MISSED, "three standard errors above it, and more"


def test_a_chain_is_one_group() -> None:
    text = words(7, 300).split()
    windows = [" ".join(text[start : start + 100]) for start in range(0, 200, 20)]
    sketches = [sketch_of(window) for window in windows]
    assert sketches[0].jaccard(sketches[-1]) == 0
    assert near_duplicates(sketches, 0.5) == [0] * len(windows)


def test_unlike_texts_are_hardly_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    jaccard = LeanMinHash.jaccard
    monkeypatch.setattr(LeanMinHash, "jaccard", lambda *pair: compared.append(1) or jaccard(*pair))
    phrase = words(1000, 10)
    sketches = [sketch_of(f"{phrase} {words(number, 200)}") for number in range(60)]
    assert near_duplicates(sketches, 0.5) == list(range(60))
    assert len(compared) < 60, "of 1,770 pairs"


@pytest.mark.parametrize("least", [0.1, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("seed", range(8))
def test_groups_are_those_of_all_pairs_that_meet_in_a_band(seed: int, least: float) -> None:
    """Sketches rather than texts: hashes of few values, so that many pairs are just alike, or just not."""
    draw = random.Random(seed)
    roots = [[draw.randrange(3 if seed % 2 else 2**32) for _ in range(HASHES)] for _ in range(6)]
    rows = [
        [value if draw.random() < kept else draw.randrange(2**32) for value in draw.choice(roots)]
        for kept in draw.choices([1.0, 0.98, 0.8, least, least / 2, 0.0], k=60)
    ]
    sketches = [
        LeanMinHash(seed=1, hashvalues=np.array(row, dtype=np.uint64), scheme=sketch_of("a").scheme) for row in rows
    ]
    assert near_duplicates(sketches, least) == groups_by_neighbours(sketches, least)


def calls_for(copies: int) -> int:
    """Calls that finding the group of so many copies takes."""
    text = words(4, 200)
    sketches = [sketch_of(edited(text, 1, number)) for number in range(copies)]
    calls = []
    sys.setprofile(lambda _, event, __: calls.append(1) if event == "call" else None)
    try:
        found = near_duplicates(sketches, 0.5)
    finally:
        sys.setprofile(None)
    assert found == [0] * copies
    return len(calls)


def test_many_copies_take_work_in_proportion_to_their_number() -> None:
    assert calls_for(400) < 2.5 * calls_for(200)


def test_what_says_nothing_is_like_nothing() -> None:
    assert near_duplicates([], 0.5) == []
    assert near_duplicates([sketch_of(text) for text in ("", "one text", "", "one text")], 0.5) == [0, 1, 2, 1]


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
