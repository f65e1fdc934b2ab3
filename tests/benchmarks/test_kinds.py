"""The labelled kinds are what they say: by a slow search of their words, which knows nothing of how they were made."""

from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from kinds import KINDS, SEGMENT, Page, harder_samples, needs_far_context

from gateau_dagster.features.demo.language import (
    ATTRIBUTES,
    FILLER_WORDS,
    OBJECTS_AFTER,
    VALUES,
    VERBS_AFTER,
    VOCABULARY,
)
from gateau_dagster.features.demo.pair import LONG_WINDOW
from gateau_dagster.features.demo.prepare import DISTRACTORS, FAR_KINDS
from gateau_dagster.features.demo.prepare import KINDS as BASE_KINDS

FAR = (384, 2**20)  # tokens from the first word of a statement to the end of the context, at least and at most
NEAR, NEAR_FACTS = (0, 48 + 4 * 18), (0, 48 + 4 * 14)  # of statements near the end, and of every fact among them
Record = dict[str, str]
PER_KIND = 5
WINDOW = 256
SEEN_AT_LEAST = 190  # context tokens that theta_A sees: its window without prompt, instruction and longest response
ALL_VALUES = {value for values in VALUES.values() for value in values}


@cache
def made() -> tuple[Record, ...]:
    """The set with PER_KIND records a kind."""
    return tuple(harder_samples(PER_KIND * len(KINDS), 5))


def of(kind: str) -> list[Record]:
    """The records of a kind."""
    return [record for record in made() if record["source"] == kind]


def stated(record: Record) -> list[tuple[str, str, int]]:
    """Attribute, value and tokens from the statement's first word to the context's end, in reading order."""
    words = record["context"].split()
    found = []
    for place, word in enumerate(words):
        if word == "note":
            assert words[place + 3] == "." and words[place + 1] in ATTRIBUTES
            found.append((words[place + 1], words[place + 2], len(words) - place))
    return found


def asked(record: Record) -> list[str]:
    """Attributes that the instruction recalls."""
    words = record["instruction"].split()
    return words[words.index("recall") + 1 :] if "recall" in words else []


def answered(record: Record) -> list[tuple[str, str]]:
    """Attribute and value pairs of the response."""
    words = record["response"].split()
    return [(first, second) for first, second in pairwise(words) if first in ATTRIBUTES]


def distances(record: Record) -> list[int]:
    """Tokens to the context's end of every statement of the answer."""
    return [far for name, value, far in stated(record) if (name, value) in answered(record)]


def segment_of(record: Record, distance: int, length: int = 128) -> int:
    """Which segment holds the word that is `distance` tokens before the context's end."""
    return (len(record["context"].split()) - distance) // length


def test_records_are_complete_and_the_kinds_take_turns() -> None:
    assert Counter(record["source"] for record in made()) == dict.fromkeys(KINDS, PER_KIND)
    assert len({record["id"] for record in made()}) == len(made())
    assert all(set(record) == {"id", "source", "context", "instruction", "response"} for record in made())
    assert not set(KINDS) & set(BASE_KINDS)


def test_every_word_is_of_the_language_and_every_prompt_fits_the_long_window() -> None:
    for record in made():
        words = [word for part in ("context", "instruction", "response") for word in record[part].split()]
        assert set(words) <= set(VOCABULARY)
        assert len(words) + 7 <= LONG_WINDOW


def test_the_label_says_whether_the_decisive_values_are_in_sight() -> None:
    """A slow definition: the values of the response that stand in the context, and where their last copy is."""
    unseen = {"order_coded", "ordered_values", "two_hop"}  # all far, too; their order or link decides, not the value
    for record in made():
        words = record["context"].split()
        values = {word for word in record["response"].split() if word in ALL_VALUES} & set(words)
        last = [words[::-1].index(value) + 1 for value in values]
        kind = KINDS[record["source"]]
        if kind.needs_far_context:
            assert last and min(last) > WINDOW, record["id"]
        else:
            assert all(distance <= SEEN_AT_LEAST + 10 for distance in last), record["id"]
        assert kind.needs_far_context or kind.name not in unseen


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_do_not_tell_the_kinds_apart(kind: str) -> None:
    lengths = [len(record["context"].split()) for record in harder_samples(25, 3, kinds=[kind])]
    assert 520 <= min(lengths) < 800 and 1100 < max(lengths) <= 168 * 8 + 4 * 34
    assert np.mean(lengths) == pytest.approx(980, abs=170)


def test_seed_and_index_decide_and_a_larger_set_begins_with_the_smaller_one() -> None:
    assert tuple(harder_samples(5, 5)) == made()[:5]
    assert len({harder_samples(1, seed)[0]["context"] for seed in (5, 6)}) == 2
    (alone,) = harder_samples(1, 5, kinds=["far_count_1"])
    assert alone == made()[0]


def test_labels_are_those_of_both_sets_and_each_is_frequent() -> None:
    assert 0.4 < np.mean([kind.needs_far_context for kind in KINDS.values()]) < 0.6
    assert [kind for kind in BASE_KINDS if needs_far_context(kind)] == list(FAR_KINDS)
    assert needs_far_context("two_hop") and not needs_far_context("look_alikes")
    beyond = {f"{name}{place}" for name in ("ordered_values", "two_hop", "order_coded") for place in ("", "_near")}
    assert {name for name, kind in KINDS.items() if not kind.within_reach} == beyond
    with pytest.raises(ValueError, match="no kinds nothing"):
        harder_samples(1, 0, kinds=["nothing", "two_hop"])


def among(facts: int) -> tuple[int, int]:
    """Return the distances of so many facts among the last sentences, beside distractors."""
    return (0, 48 + 4 * (facts + DISTRACTORS[1]))


# How often the answer's statements are in the context, and where each of them is.
STATED: dict[str, tuple[int, tuple[int, int]]] = {
    **{f"far_count_{count}": (count, FAR) for count in (1, 3, 6)},
    **{f"near_count_{count}": (count, among(count)) for count in (1, 3, 6)},
    **{name: (1, (at, at + 7)) for name in ("near_at_100", "near_at_190", "far_at_280", "far_at_450")
       for at in [int(name[-3:])]},
    **{f"far_among_{others}": (1, FAR) for others in (0, 24)},
    **{f"near_among_{others}": (1, (0, 48 + 4 * (others + 1))) for others in (0, 24)},
    **dict.fromkeys(("local_only", "absent", "contradicted"), (0, FAR)),
    **dict.fromkeys(("repetitive_far", "dilution", "far_look_alikes", "across_border", "order_coded"), (1, FAR)),
    "near_dilution": (1, NEAR_FACTS), "order_coded_near": (1, NEAR),
    "ordered_values": (3, FAR), "ordered_values_near": (3, among(3)), "far_copies": (2, FAR),
}  # fmt: skip


@pytest.mark.parametrize("kind", STATED)
def test_the_answer_is_stated_as_often_and_where_the_kind_says(kind: str) -> None:
    count, (least, most) = STATED[kind]
    for record in of(kind):
        found = distances(record)
        assert len(found) == count and all(least <= each <= most for each in found)
        assert [name for name, _ in answered(record)] == asked(record) != []


@pytest.mark.parametrize("others", [0, 24])
@pytest.mark.parametrize("side", ["far", "near"])
def test_as_many_distractors_as_the_name_says(side: str, others: int) -> None:
    for record in of(f"{side}_among_{others}"):
        assert len(stated(record)) == others + 1 and len({name for name, _, _ in stated(record)}) == others + 1


def test_the_first_thing_in_the_context() -> None:
    for record in of("far_at_start"):
        assert stated(record)[0][:2] == answered(record)[0] and distances(record) == [len(record["context"].split())]


def test_the_instruction_states_what_it_asks_and_the_context_does_not() -> None:
    for record in of("local_only"):
        ((name, value),) = answered(record)
        assert record["instruction"] == f"note {name} {value} . recall {name}"
        assert value not in record["context"].split()


def test_what_is_absent_stands_nowhere() -> None:
    for record in of("absent"):
        assert not set(asked(record)) & {name for name, _, _ in stated(record)}
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


def test_of_two_statements_the_near_one_answers() -> None:
    for record in of("near_repeated_far"):
        far, near = distances(record)
        assert far >= FAR[0] and near <= NEAR_FACTS[1]
    for record in of("near_wrong_far"):
        (near,) = distances(record)
        wrong = [(value, far) for name, value, far in stated(record) if name == asked(record)[0] and far != near]
        assert near <= NEAR_FACTS[1] and len({value for value, _ in wrong} - {answered(record)[0][1]}) == 3
        assert len(wrong) == 3 and all(far >= FAR[0] for _, far in wrong)


@pytest.mark.parametrize(("kind", "far"), [("near_noise", False), ("far_noise", True)])
def test_answers_are_followed_by_eight_random_words(kind: str, far: bool) -> None:
    for record in of(kind):
        found = distances(record)
        assert len(found) == len(asked(record)) in (1, 2)
        assert min(found) >= FAR[0] if far else max(found) <= NEAR_FACTS[1]
        noise = record["response"].split()[3 * len(found) :]
        assert len(noise) == 8 and noise[-1] == "." and set(noise[:-1]) <= set(FILLER_WORDS)


def test_two_far_statements_are_in_different_segments() -> None:
    for record in of("far_copies"):
        first, second = distances(record)
        assert segment_of(record, first) < segment_of(record, second)
    for record in of("stale_values"):
        (name,) = asked(record)
        (_, stale, first), (_, value, second) = [each for each in stated(record) if each[0] == name]
        assert stale != value == answered(record)[0][1]
        assert second >= FAR[0] and segment_of(record, first) < segment_of(record, second)


@pytest.mark.parametrize("kind", ["dilution", "near_dilution"])
def test_a_diluted_answer_comes_behind_four_sentences(kind: str) -> None:
    for record in of(kind):
        words = record["response"].split()
        assert len(words) == 35 and words[32] == asked(record)[0] and not set(words[:32]) & set(ATTRIBUTES)
        assert words[1] == record["instruction"].split()[2]


@pytest.mark.parametrize("kind", ["two_hop", "two_hop_near"])
def test_neither_of_two_facts_alone_gives_the_value(kind: str) -> None:
    for record in of(kind):
        (name,) = asked(record)
        links = [each for each in stated(record) if each[0] == name]
        ((_, other, first),) = links
        assert other in ATTRIBUTES and other != name
        ((_, value, second),) = [each for each in stated(record) if each[0] == other]
        assert answered(record) == [(name, value)] and value in VALUES[other]
        if kind == "two_hop":
            assert min(first, second) >= FAR[0] and segment_of(record, first) != segment_of(record, second)
        else:
            assert max(first, second) <= NEAR[1]


def test_the_two_facts_come_in_either_order() -> None:
    orders = {
        stated(record).index(next(each for each in stated(record) if each[1] in ATTRIBUTES)) for record in of("two_hop")
    }
    assert len(orders) > 1


@pytest.mark.parametrize("kind", ["paraphrased", "paraphrased_near"])
def test_the_fact_stands_once_in_another_form(kind: str) -> None:
    for record in of(kind):
        ((name, value),) = answered(record)
        words = record["context"].split()
        place = words.index(value)
        assert words[place - 1 : place + 5] == ["the", value, "of", "the", name, "."]
        assert words.count(value) == words.count(name) == 1
        distance = len(words) - place
        assert distance >= FAR[0] - 1 if kind == "paraphrased" else distance <= NEAR[1]


@pytest.mark.parametrize("kind", ["order_coded", "order_coded_near"])
def test_all_values_are_stated_once_and_the_first_is_the_answer(kind: str) -> None:
    for record in of(kind):
        (name,) = asked(record)
        lines = [(value, far) for one, value, far in stated(record) if one == name]
        assert sorted(value for value, _ in lines) == sorted(VALUES[name])
        assert answered(record) == [(name, lines[0][0])]
        places = [far for _, far in lines]
        assert min(places) >= FAR[0] if kind == "order_coded" else max(places) <= NEAR[1]


@pytest.mark.parametrize("length", [128, 64, 16, 8])
def test_no_segment_holds_attribute_and_value(length: int) -> None:
    for record in of("across_border"):
        ((name, value),) = answered(record)
        words = record["context"].split()
        segments = [words[at : at + length] for at in range(0, len(words), length)]
        assert sum(name in segment for segment in segments) == sum(value in segment for segment in segments) == 1
        assert not any(name in segment and value in segment for segment in segments)


@pytest.mark.parametrize("kind", ["look_alikes", "far_look_alikes"])
def test_one_noun_is_the_subject_again_and_again(kind: str) -> None:
    for record in of(kind):
        words = record["context"].split()
        subjects = [
            words[at + 1] for at in range(len(words) - 1) if words[at] == "the" and words[at - 1] in (".", words[-1])
        ]
        top = max(set(subjects), key=subjects.count)
        assert 0.05 < subjects.count(top) / len(subjects) < 0.35
        if kind == "look_alikes":
            assert record["instruction"] == f"tell about {top}" and record["response"].split()[1] == top


def test_a_contradicted_response_gives_a_value_that_stands_nowhere() -> None:
    for record in of("contradicted"):
        ((name, value),) = answered(record)
        ((_, other, far),) = [each for each in stated(record) if each[0] == name]
        assert other != value and {other, value} <= set(VALUES[name]) and far >= 384
        assert value not in record["context"].split()


STATEMENT = ["one", "two", "three", "."]  # no words of the language


def page(seed: int = 0) -> Page:
    return Page.blank(np.random.default_rng(seed))


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


def test_far_slots_keep_their_distances() -> None:
    for seed in range(60):
        one = page(seed)
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
