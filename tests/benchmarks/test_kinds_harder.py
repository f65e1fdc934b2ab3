"""The design's harder kinds are what they say: by a slow search of their words."""

import pytest

from gateau_dagster.demo.language import ATTRIBUTES, FILLER_WORDS
from tests.benchmarks.evidence import answered, asked, distances, of, segment_of, stated

NEAR = 48 + 4 * 14  # tokens of near sentences and of every fact that may stand among them


def test_one_copy_near_and_one_far() -> None:
    for record in of("near_repeated_far"):
        far, near = distances(record)
        assert far >= 384 and near <= NEAR


def test_the_answer_is_near_and_other_values_are_far() -> None:
    for record in of("near_wrong_far"):
        (near,) = distances(record)
        wrong = [(value, far) for name, value, far in stated(record) if name == asked(record)[0] and far != near]
        assert near <= NEAR and len({value for value, _ in wrong}) == 3
        assert all(far >= 384 for _, far in wrong) and answered(record)[0][1] not in {value for value, _ in wrong}


@pytest.mark.parametrize(("kind", "far"), [("near_noise", False), ("far_noise", True)])
def test_answers_are_followed_by_eight_random_words(kind: str, far: bool) -> None:
    for record in of(kind):
        found = distances(record)
        assert len(found) == len(asked(record)) in (1, 2)
        assert min(found) >= 384 if far else max(found) <= NEAR
        noise = record["response"].split()[3 * len(found) :]
        assert len(noise) == 8 and noise[-1] == "." and set(noise[:-1]) <= set(FILLER_WORDS)


def test_two_copies_are_far_and_in_different_segments() -> None:
    for record in of("far_copies"):
        first, second = distances(record)
        assert second >= 384 and segment_of(record, first) < segment_of(record, second)


def test_the_stale_value_comes_first_and_both_are_far() -> None:
    for record in of("stale_values"):
        (name,) = asked(record)
        (_, stale, first), (_, value, second) = [each for each in stated(record) if each[0] == name]
        assert stale != value == answered(record)[0][1]
        assert second >= 384 and segment_of(record, first) < segment_of(record, second)


@pytest.mark.parametrize(("kind", "far"), [("dilution", True), ("near_dilution", False)])
def test_a_diluted_answer_comes_behind_four_sentences(kind: str, far: bool) -> None:
    for record in of(kind):
        words = record["response"].split()
        assert len(words) == 35 and words[32] == asked(record)[0] and not set(words[:32]) & set(ATTRIBUTES)
        assert words[1] == record["instruction"].split()[2]
        (found,) = distances(record)
        assert found >= 384 if far else found <= NEAR
