"""The controlled kinds are what they say: by a slow search of their words."""

from itertools import pairwise

import pytest

from gateau_dagster.demo.language import FILLER_WORDS, OBJECTS_AFTER, VERBS_AFTER
from gateau_dagster.demo.long_samples import DISTRACTORS
from tests.benchmarks.evidence import ALL_VALUES, answered, asked, distances, of, stated


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("side", ["far", "near"])
def test_as_many_facts_as_the_name_says_on_its_side(side: str, count: int) -> None:
    for record in of(f"{side}_count_{count}"):
        assert len(asked(record)) == count and [name for name, _ in answered(record)] == asked(record)
        found = distances(record)
        assert len(found) == count
        assert min(found) >= 384 if side == "far" else max(found) <= 48 + 4 * (count + DISTRACTORS[1])


@pytest.mark.parametrize(
    ("kind", "distance"), [("near_at_100", 100), ("near_at_190", 190), ("far_at_280", 280), ("far_at_450", 450)]
)
def test_the_fact_is_at_its_distance(kind: str, distance: int) -> None:
    for record in of(kind):
        (found,) = distances(record)
        assert distance <= found <= distance + 7


def test_the_first_thing_in_the_context() -> None:
    for record in of("far_at_start"):
        assert stated(record)[0][:2] == answered(record)[0]
        assert record["context"].startswith("note ") and distances(record) == [len(record["context"].split())]


@pytest.mark.parametrize(("kind", "others"), [("among_0", 0), ("among_24", 24)])
@pytest.mark.parametrize("side", ["far", "near"])
def test_as_many_distractors_as_the_name_says(side: str, kind: str, others: int) -> None:
    for record in of(f"{side}_{kind}"):
        assert len(stated(record)) == others + 1 and len({name for name, _, _ in stated(record)}) == others + 1


def test_the_instruction_states_what_it_asks_and_the_context_does_not() -> None:
    for record in of("local_only"):
        ((name, value),) = answered(record)
        assert record["instruction"] == f"note {name} {value} . recall {name}"
        assert value not in record["context"].split()


def test_what_is_absent_stands_nowhere() -> None:
    for record in of("absent"):
        assert not distances(record, with_value=False) and len(answered(record)) == len(asked(record)) > 0
        assert not set(record["context"].split()) & {value for _, value in answered(record)}


def test_a_long_tale_is_four_sentences_of_the_language_about_the_noun() -> None:
    for record in of("long_tale"):
        words = record["response"].split()
        assert len(words) == 32 and words[1] == record["instruction"].split()[-1]
        for start in range(0, 32, 8):
            noun, verb, target = words[start + 1], words[start + 2], words[start + 4]
            assert verb in VERBS_AFTER[noun] and target in OBJECTS_AFTER[verb]


def test_rare_words_stand_nowhere_else_and_every_other_word_is_kept() -> None:
    for record in of("rare_words"):
        response = record["response"].split()
        rare = [word for word in response if word in ALL_VALUES]
        assert len(rare) == len(set(rare)) == 4 and sum(word in FILLER_WORDS for word in response) == 4
        assert not set(rare) & set((record["context"] + record["instruction"]).split())


@pytest.mark.parametrize("kind", ["repetitive", "repetitive_far"])
def test_the_filler_repeats_three_sentences(kind: str) -> None:
    for record in of(kind):
        parts = [part for part in record["context"].split(" . ") if not part.startswith("note ")]
        assert len({part.removesuffix(" .") for part in parts}) == 3


def test_the_repeated_sentence_stands_near_and_in_every_segment() -> None:
    for record in of("repetitive"):
        words = record["context"].split()
        assert record["response"] in " ".join(words[-60:])
        assert all(record["response"] in " ".join(words[at : at + 128]) for at in range(0, len(words) - 128, 64))
        assert record["instruction"].split()[-1] == record["response"].split()[1]
    for record in of("repetitive_far"):
        assert len(distances(record)) == 1 and min(distances(record)) >= 384


def test_what_is_stated_everywhere_is_never_far_from_its_next_copy() -> None:
    for record in of("stated_everywhere"):
        found = distances(record)
        assert min(found) <= 64 and max(found) > len(record["context"].split()) - 12 * 8 - 60
        assert all(first - second <= 12 * 8 + 4 * DISTRACTORS[1] + 4 for first, second in pairwise(found))


@pytest.mark.parametrize("kind", ["ordered_values", "ordered_values_near"])
def test_values_of_one_attribute_are_asked_for_in_the_order_of_their_statement(kind: str) -> None:
    for record in of(kind):
        (name,) = set(asked(record))
        assert [(one, value) for one, value, _ in stated(record) if one == name] == answered(record)
        assert len(set(answered(record))) == len(asked(record)) == 3
        found = distances(record)
        assert min(found) >= 384 if kind == "ordered_values" else max(found) <= 48 + 4 * (3 + DISTRACTORS[1])
