"""Hashes of words and n-grams against words and tuples of them: equal exactly where these are."""

from collections.abc import Hashable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.near_duplicates import sketch
from gateau_dagster.evaluation.contamination import SHINGLE_WORDS, ngrams, shingles, words
from tests.evaluation.contamination.slow import drawn_words, slow_ngrams, slow_words

TEXTS = st.text(st.sampled_from("abIß1 éﬁ\u0301\n\t-'’.,_漢字かカー日々ที่한글½\u00a0 "), max_size=60)


def one_to_one(keys: Iterable[Hashable], hashes: Iterable[int]) -> bool:
    pairs = set(zip(keys, hashes, strict=True))
    return len(pairs) == len({key for key, _ in pairs}) == len({value for _, value in pairs})


@given(TEXTS)
def test_words_are_those_of_the_twin(text: str) -> None:
    assert one_to_one(slow_words(text), words(text).tolist())


@given(TEXTS, st.integers(1, 5))
def test_ngrams_are_those_of_the_twin(text: str, length: int) -> None:
    plain = slow_words(text)
    tuples = [tuple(plain[start : start + length]) for start in range(len(plain) - length + 1)]
    assert one_to_one(tuples, ngrams(words(text), length).tolist())


def test_a_long_text_has_no_two_words_with_one_hash() -> None:
    text = " ".join(f"{letter}{number}" for letter in "abcdefgh" for number in range(4_000))
    hashes = words(text)
    assert np.unique(hashes).size == hashes.size == 32_000
    assert np.unique(ngrams(hashes, 13)).size == 32_000 - 12
    tail = text.index("h0 ")
    assert np.array_equal(words(text[tail:]), hashes[28_000:]), "wherever a word stands"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The café is OPEN, she said.", "the cafe\u0301\n\nis\u00a0open she said"),
        ("Rowling 's state-of-the-art ( novel )", "Rowling's state of the art (novel)"),
        ("“Ｔｈｅ ﬁrst” 中文，字。", '"the first" 中 文 字'),
        ("STRASSE 12", "straße\t12"),
    ],
)
def test_case_punctuation_white_space_and_unicode_form_do_not_count(one: str, other: str) -> None:
    assert words(one).tolist() == words(other).tolist() != []
    assert words(one)[:-1].tolist() != words(other).tolist()


@pytest.mark.parametrize("text", ["", " \n", "...", "—", "\U000e0001\U0010ffff"])
def test_what_has_no_word_has_no_hash(text: str) -> None:
    assert words(text).size == ngrams(words(text), 13).size == shingles(words(text)).size == 0


def test_ngrams_of_other_lengths_are_other_ones() -> None:
    text = words("a a a a a a")
    assert len({ngrams(text, length)[0] for length in range(1, 7)}) == 6


def test_a_sketch_estimates_the_share_of_common_shingles() -> None:
    one = drawn_words(1, 4000).split()
    other = [*one[:3000], *drawn_words(2, 1000).split()]
    first, second = (slow_ngrams([" ".join(text)], SHINGLE_WORDS) for text in (one, other))
    mine, others = (sketch(shingles(words(" ".join(text)))) for text in (one, other))
    assert mine.jaccard(others) == pytest.approx(len(first & second) / len(first | second), abs=0.12)
