"""Haystacks: what is kept, what is cut out, and where the needle goes."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.evaluation.haystack import Haystack, build_haystack, insert_needle, sentences_of
from tests.error_codes import refused

from .builders import loaded, vocabulary

_HAY = Haystack(sentences=(("one two. ", (1, 2)), ("Lisbon is old.\n", (3, 4, 5)), ("Lisbons? ", (6,)), ("x", (7,))))


@given(hay=st.lists(st.integers(0, 5), max_size=30), depth=st.floats(0, 1))
def test_the_needle_is_whole_and_at_its_depth(hay: list[int], depth: float) -> None:
    joined = insert_needle(hay, [100, 101], depth=depth)
    place = joined.index(100)
    assert joined[place + 1] == 101
    assert [token for token in joined if token < 100] == hay
    assert abs(place - depth * len(hay)) <= 0.5


@pytest.mark.parametrize(("depth", "place"), [(0.0, 0), (0.25, 25), (0.5, 50), (1.0, 100)])
def test_exact_places(depth: float, place: int) -> None:
    assert insert_needle(range(100), [777], depth=depth).index(777) == place


@pytest.mark.parametrize("key", ["Lisbon", "lisbon", " LISBON "])
def test_sentences_that_name_the_key_are_out_and_longer_words_stay(key: str) -> None:
    assert [text for text, _ in _HAY.without(key).sentences] == ["one two. ", "Lisbons? ", "x"]


def test_a_key_is_no_pattern() -> None:
    assert _HAY.without(".*") == _HAY


def test_tokens_go_round_from_a_drawn_sentence() -> None:
    cycle = [1, 2, 3, 4, 5, 6, 7] * 4
    for seed in range(5):
        taken = list(_HAY.tokens(17, random.Random(seed)))
        start = cycle.index(taken[0])
        assert taken == cycle[start : start + 17]
    assert {_HAY.tokens(1, random.Random(seed)) for seed in range(30)} == {(1,), (3,), (6,), (7,)}
    assert Haystack(sentences=()).tokens(0, random.Random(0)) == ()


def test_no_hay_is_an_error_with_a_cure() -> None:
    with refused("evaluation.no_text"):
        _HAY.without("x").without("one").without("lisbon").without("lisbons").tokens(3, random.Random(0))


def test_sentences_give_the_text_back_and_stop_when_there_is_enough() -> None:
    words = vocabulary()[:60]
    text = " ".join(words[:20]) + " .\n" + " ".join(words[20:40]) + "! " + " ".join(words[40:]) + "\n"
    tokenizer = loaded().tokenizer
    hay = build_haystack(tokenizer, [text, "", text], tokens=10_000)
    assert "".join(part for part, _ in hay.sentences) == text + text
    assert [len(ids) for _, ids in hay.sentences] == [21, 20, 20] * 2
    assert len(build_haystack(tokenizer, [text, text], tokens=22).sentences) == 2


@given(text=st.text(alphabet="a.!。 \n\t", max_size=40))
def test_a_sentence_ends_at_the_first_mark_before_white_space(text: str) -> None:
    slow = re.compile(r".+?(?:[.!?。！？]+\s+|\n+|$)", re.DOTALL)
    assert list(sentences_of(text)) == [match.group() for match in slow.finditer(text)]


def test_a_run_of_points_is_read_once() -> None:
    """Read again from each of its points it would take the better part of an hour."""
    points = "." * 500_000
    assert list(sentences_of(f"Contents {points} 1\nA part {points}")) == [
        f"Contents {points} ",
        "1\n",
        f"A part {points}",
    ]
