"""Groups of near-duplicates against a slow twin: every pair compared, and what is joined found by walking."""

import random

import numpy as np
import pytest

from gateau_dagster.data.near_duplicates import near_duplicates
from gateau_dagster.data.shingles import KEPT, Sketch, normalised, similarity, sketch
from tests.data.test_shingles import words


def slow_groups(sketches: list[Sketch], least: float) -> list[int]:
    alike = [[n for n, other in enumerate(sketches) if similarity(each, other) >= least] for each in sketches]
    found = []
    for number in range(len(sketches)):
        reached, waiting = {number}, [number]
        while waiting:
            more = {*alike[waiting.pop()]} - reached
            reached |= more
            waiting += more
        found.append(min(reached))
    return found


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


@pytest.mark.parametrize("least", [0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize(("seed", "length"), [(1, 12), (2, 60), (3, 600)])
def test_no_pair_is_missed_and_none_is_invented(seed: int, length: int, least: float) -> None:
    sketches = [sketch(normalised(text)) for text in many_texts(seed, length)]
    assert (max(each.size for each in sketches) == KEPT) == (length == 600)
    found = near_duplicates(sketches, least)
    assert found == slow_groups(sketches, least)
    assert 1 < len(set(found)) <= len(found)


@pytest.mark.parametrize("seed", range(20))
def test_random_sets_of_hashes(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    sets = [drawn.choice(12, drawn.integers(0, 12), replace=False) for _ in range(25)]
    sketches = [np.sort(each).astype(np.uint64) for each in sets]
    held = [each for each in sketches if each.size]
    for least in (0.25, 0.5, 2 / 3, 0.7, 1.0):
        assert near_duplicates(held, least) == slow_groups(held, least)


def test_a_chain_is_one_group() -> None:
    text = words(7, 300).split()
    windows = [" ".join(text[start : start + 100]) for start in range(0, 200, 20)]
    sketches = [sketch(normalised(window)) for window in windows]
    assert similarity(sketches[0], sketches[-1]) == 0
    assert near_duplicates(sketches, 0.5) == [0] * len(windows)


def test_a_phrase_in_all_texts_brings_no_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(
        "gateau_dagster.data.near_duplicates.similarity", lambda *pair: compared.append(1) or similarity(*pair)
    )
    phrase = words(1000, 40)
    sketches = [sketch(normalised(f"{phrase} {words(number, 80)}")) for number in range(60)]
    assert near_duplicates(sketches, 0.5) == list(range(60))
    assert len(compared) < 60, "of 1,770 pairs"


def test_nothing_is_no_group() -> None:
    assert near_duplicates([], 0.5) == []
