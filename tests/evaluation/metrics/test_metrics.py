"""The metrics against slow twins, by the definitions of F1 and of the longest common subsequence."""

import itertools
import random

import pytest

from gateau_dagster.evaluation.metrics import (
    class_share,
    common_subsequence,
    f1,
    line_similarity,
    normalised_words,
    rouge_l,
    share_contained,
)


def _slow_f1(answer: list[str], right: list[str]) -> float:
    left = list(right)
    shared = sum(1 for word in answer if word in left and not left.remove(word))
    return 2 * shared / (len(answer) + len(right))


def test_f1_counts_each_word_as_often_as_both_hold_it() -> None:
    rng = random.Random(0)
    for _ in range(100):
        answer, right = (rng.choices("abcde", k=rng.randint(1, 9)) for _ in range(2))
        assert f1(answer, right) == pytest.approx(_slow_f1(answer, right), abs=1e-12)
    assert f1([], ["a"]) == f1(["a"], []) == f1(["a"], ["b"]) == 0


def test_words_are_bare() -> None:
    assert normalised_words("The  U.S.'s An-swer: a\nB") == ["uss", "answer", "b"]


def _longest(first: list[str], second: list[str]) -> int:
    subsequences = ([*part] for size in range(len(first), -1, -1) for part in itertools.combinations(first, size))
    return next(len(part) for part in subsequences if _within(part, second))


def _within(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def test_a_common_subsequence_is_one_and_none_is_longer() -> None:
    rng = random.Random(1)
    for _ in range(60):
        first, second = (rng.choices("abcd", k=rng.randint(0, 8)) for _ in range(2))
        found = common_subsequence(first, second)[::-1]
        assert _within(found, first) and _within(found, second) and len(found) == _longest(first, second)


def test_rouge_l_of_sentences() -> None:
    # Of the reference's first sentence "a b" is found, of the second "d": 3 of its 5 words, 3 of the answer's 4.
    assert rouge_l("a b x. d.", "a b c. e d.") == pytest.approx(2 * 0.6 * 0.75 / 1.35, abs=1e-7)
    assert rouge_l("same words here", "same words here") == pytest.approx(1, abs=1e-7)
    assert rouge_l("", "a") == rouge_l("a", "...") == 0
    long = [str(number) for number in range(1100)]
    assert rouge_l(" ".join(long), " ".join(long)) == pytest.approx(1, abs=1e-7)


def test_short_answers() -> None:
    assert class_share("Food or Date", "Date", ["Food", "Date", "Colour"]) == 0.5
    assert class_share("nothing", "Date", ["Food", "Date"]) == 0
    assert line_similarity("# no\nx = 1", "x = 1") == 1
    assert line_similarity("", "x = 1") == 0
    assert share_contained("It is ALPHA, then beta.", ["alpha", "Beta", "gamma", "delta"]) == 0.5
