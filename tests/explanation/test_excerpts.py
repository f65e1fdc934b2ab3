"""Test which parts of a long context are shown."""

import pytest

from gateau_dagster.explanation.evidence import Evidence, EvidenceSegment
from gateau_dagster.explanation.excerpts import ENDS, pieces
from tests.features.report.builders import sample

WIDTH = 100


def made(gains: dict[int, float], *, count: int = 40, unseen: int = 0, named: tuple[int, ...] = ()) -> Evidence:
    context = "u" * unseen + "".join(chr(ord("A") + number % 26) * WIDTH for number in range(count))
    segments = [
        EvidenceSegment(
            index=number,
            start=unseen + number * WIDTH,
            end=unseen + (number + 1) * WIDTH,
            near=number == count - 1,
            tokens=WIDTH,
            gain=gains.get(number, 0.0),
            perplexity=1.0,
            attention=None,
            named=number in named,
        )
        for number in range(count)
    ]
    return Evidence(sample=sample(context, "y"), segments=segments, tokens=[], unseen=unseen, window=None)


@pytest.mark.parametrize("longest", [10, 900, 100_000])
@pytest.mark.parametrize("unseen", [0, 7, 700])
def test_no_character_is_unaccounted_for(longest: int, unseen: int) -> None:
    found = made({3: 0.9, 20: 0.2}, unseen=unseen)
    context = found.sample.context
    shown = pieces(context, found, longest=longest, most=3)
    assert sum(len(piece.text) + piece.left_out for piece in shown) == len(context)
    place = 0
    for piece in shown:
        assert context[place:].startswith(piece.text)
        place += len(piece.text) + piece.left_out
    assert sum(len(piece.text) + piece.left_out for piece in shown if not piece.seen) == unseen


def test_a_short_context_is_whole() -> None:
    found = made({3: 0.9})
    shown = pieces(found.sample.context, found, longest=len(found.sample.context), most=1)
    assert [piece.segment for piece in shown] == [*range(40)]


def test_of_a_long_one_the_ends_and_what_gave_most_stay() -> None:
    found = made({3: 0.1, 9: 0.9, 15: 0.8, 30: 0.05}, named=(30,))
    kept = [piece.segment for piece in pieces(found.sample.context, found, longest=900, most=3) if piece.text]
    assert kept == [*range(ENDS), 9, 15, 30, *range(40 - ENDS, 40)]


def test_segments_that_gave_nothing_do_not_fill_the_room() -> None:
    found = made({9: 0.9, 4: 0.001})
    kept = [piece.segment for piece in pieces(found.sample.context, found, longest=900, most=10) if piece.text]
    assert kept == [*range(ENDS), 9, *range(40 - ENDS, 40)]


def test_without_evidence_the_ends_are_shown() -> None:
    start, between, end = pieces("a" * 50 + "b" * 50, None, longest=20, most=1)
    assert (start.text, between.left_out, end.text) == ("a" * 10, 80, "b" * 10)
    assert [piece.text for piece in pieces("abc", None, longest=20, most=1)] == ["abc"]
