import numpy as np
import pytest
from common_page import SEGMENT, SIZES, Page

STATEMENT = ["one", "two", "three", "."]  # no words of the language


def page(seed: int = 0, size: str = "medium") -> Page:
    return Page.blank(np.random.default_rng(seed), SIZES[size])


def test_statements_stand_before_their_sentence_and_at_the_end() -> None:
    one = page()
    one.state(0, ["first", "."])
    one.state(0, ["second", "."])
    one.state(3, ["third", "."])
    one.state(one.sentence_count, ["last", "."])
    words = one.text()
    assert words[:4] == ["first", ".", "second", "."] and words[-2:] == ["last", "."]
    assert words.index("third") == 4 + 3 * 8
    assert len(words) == one.sentence_count * 8 + 8


def test_a_slot_outside_is_refused() -> None:
    one = page()
    with pytest.raises(AssertionError):
        one.state(one.sentence_count + 1, STATEMENT)


def test_facts_are_of_different_attributes_and_run_out() -> None:
    one = page()
    facts = [*one.take(20), *one.take(12)]
    assert len({fact.attribute for fact in facts}) == 32
    with pytest.raises(AssertionError, match="32 attributes"):
        one.take(1)


@pytest.mark.parametrize("size", SIZES)
def test_far_slots_keep_their_distances(size: str) -> None:
    for seed in range(60):
        one = page(seed, size)
        first, second = one.far_slots()
        assert first >= 0 and second - first >= 17  # more than a segment of 128 tokens between them
        for slot in (first, second, one.slot(far=True)):
            assert (one.sentence_count - slot) * 8 >= 384
        assert 0 <= (one.sentence_count - one.slot(far=False)) * 8 <= 48


@pytest.mark.parametrize("distance", [4, 100, 101, 107, 280, 450])
def test_a_distance_is_kept_to_within_a_sentence(distance: int) -> None:
    for seed in range(20):
        one = page(seed)
        one.distract()
        words = one.text_with(STATEMENT, distance=distance)
        place = next(at for at in range(len(words)) if words[at : at + 4] == STATEMENT)
        assert distance <= len(words) - place <= distance + 7
        whole = page(seed)
        whole.distract()
        assert words[:place] + words[place + 4 :] == whole.text()


def test_a_statement_across_a_border_is_cut_by_it_and_far() -> None:
    for seed in range(60):
        one = page(seed)
        one.distract()
        words = one.text_across(STATEMENT, first=2)
        place = next(at for at in range(len(words)) if words[at : at + 4] == STATEMENT)
        assert (place + 2) % SEGMENT == 0
        assert len(words) - place >= 384
        assert words[place - 1] == "."  # it stands between sentences
