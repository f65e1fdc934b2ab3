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


@pytest.mark.parametrize(
    ("gains", "named", "most", "kept"),
    [
        ({3: 0.1, 9: 0.9, 15: 0.8, 30: 0.05}, (30,), 3, [9, 15, 30]),
        ({9: 0.9, 4: 0.001}, (), 10, [9]),  # what gave nothing does not fill the room
    ],
)
def test_of_a_long_one_the_ends_and_what_gave_most_stay(
    gains: dict[int, float], named: tuple[int, ...], most: int, kept: list[int]
) -> None:
    found = made(gains, named=named)
    context = found.sample.context
    shown = [piece.segment for piece in pieces(context, found, longest=900, most=most) if piece.text]
    assert shown == [*range(ENDS), *kept, *range(40 - ENDS, 40)]
    assert [piece.segment for piece in pieces(context, found, longest=len(context), most=1)] == [*range(40)]


def test_without_evidence_the_ends_are_shown() -> None:
    start, between, end = pieces("a" * 50 + "b" * 50, None, longest=20, most=1)
    assert (start.text, between.left_out, end.text) == ("a" * 10, 80, "b" * 10)
    assert [piece.text for piece in pieces("abc", None, longest=20, most=1)] == ["abc"]
