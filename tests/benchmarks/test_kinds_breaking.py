"""The kinds that are to break `far_gain` are what they say: by a slow search of their words."""

import pytest

from gateau_dagster.demo.language import ATTRIBUTES, VALUES
from tests.benchmarks.evidence import answered, asked, distances, of, segment_of, stated

NEAR = 48 + 4 * 18


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
            assert min(first, second) >= 384 and segment_of(record, first) != segment_of(record, second)
        else:
            assert max(first, second) <= NEAR


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
        assert distance >= 383 if kind == "paraphrased" else distance <= NEAR


@pytest.mark.parametrize("kind", ["order_coded", "order_coded_near"])
def test_all_values_are_stated_once_and_the_first_is_the_answer(kind: str) -> None:
    for record in of(kind):
        (name,) = asked(record)
        lines = [(value, far) for one, value, far in stated(record) if one == name]
        assert sorted(value for value, _ in lines) == sorted(VALUES[name])
        assert answered(record) == [(name, lines[0][0])]
        places = [far for _, far in lines]
        assert min(places) >= 384 if kind == "order_coded" else max(places) <= NEAR


@pytest.mark.parametrize("length", [128, 64, 16, 8])
def test_no_segment_holds_attribute_and_value(length: int) -> None:
    for record in of("across_border"):
        ((name, value),) = answered(record)
        words = record["context"].split()
        segments = [words[at : at + length] for at in range(0, len(words), length)]
        assert sum(name in segment for segment in segments) == sum(value in segment for segment in segments) == 1
        assert not any(name in segment and value in segment for segment in segments)
        assert min(distances(record)) >= 384


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
        else:
            assert min(distances(record)) >= 384


def test_a_contradicted_response_gives_a_value_that_stands_nowhere() -> None:
    for record in of("contradicted"):
        ((name, value),) = answered(record)
        ((_, other, far),) = [each for each in stated(record) if each[0] == name]
        assert other != value and {other, value} <= set(VALUES[name]) and far >= 384
        assert value not in record["context"].split()
