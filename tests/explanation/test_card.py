"""A map prints its segments, and links each token to its segment."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateau_dagster.explanation.card import SLOTS, EvidenceCard, Fold, Passage, evidence_card
from gateau_dagster.explanation.evidence import Evidence, evidence
from tests.features.report.builders import LENGTH, rows_of, sample
from tests.kit.tiny_models import text, tokenizer


def mapped(words: int = 60, response: str = "one two three", **rows: Any) -> Evidence:
    one = sample(text(1, words), response)
    return evidence(one, rows_of(tokenizer(), one, **rows), tokenizer(), segment_length=LENGTH)


def passages(card: EvidenceCard) -> list[Passage]:
    return [piece for piece in card.context if isinstance(piece, Passage)]


def words_of(card: EvidenceCard) -> str:
    parts = [part for piece in passages(card) for part in (piece.before, piece.after) if part]
    assert not any(part.left_out for part in parts)
    return "".join(part.start for part in parts)


def test_a_short_context_and_its_response_are_printed_whole() -> None:
    found = mapped(20, gives=[(0, 1, 0.9)])
    card = evidence_card(found, "e1")
    assert words_of(card) == found.sample.context
    assert "".join(piece.space + piece.text for piece in card.response) == found.sample.response
    assert [(piece.number, piece.linked) for piece in card.response if piece.level] == [(1, True)]
    assert card.named == [1] and card.unseen is None


@pytest.mark.parametrize("gives", [[(20, 0, 0.9), (33, 1, 0.3)], [(index, 0, 0.5) for index in range(40)]])
def test_a_long_context_is_folded_to_the_segments_that_matter(gives: Sequence[tuple[int, int, float]]) -> None:
    found = mapped(400, near=3, gives=gives)
    card = evidence_card(found, "e1")
    shown = [piece.number - 1 for piece in passages(card)]
    total, given = len(found.segments), {token.segment for token in found.tokens if token.segment is not None}
    assert total > 40 and len(shown) <= 12
    always = {0, total - 3, total - 1}
    assert always | given <= set(shown), "both ends, theta_A's sight, and what gave something"
    assert all(found.segments[index].gain > 0 for index in set(shown) - always)
    folds = [piece for piece in card.context if isinstance(piece, Fold)]
    folded = [number - 1 for fold in folds for number in range(fold.first, fold.last + 1)]
    assert sorted(shown + folded) == list(range(total))
    for fold in folds:
        assert fold.most == max(found.segments[number - 1].gain for number in range(fold.first, fold.last + 1))


def test_named_segments_are_printed_before_those_that_gave_little_to_many_tokens() -> None:
    little = [(index, token, 0.5) for index in range(2, 20) for token in range(6)]
    found = mapped(400, response="one two three four", near=1, gives=[*little, (30, 0, 0.98)])
    assert found.named == [30] and found.segments[30].gain < found.segments[5].gain
    assert 31 in {piece.number for piece in passages(evidence_card(found, "e1"))}


def test_the_border_of_theta_a_s_sight_stands_where_it_is() -> None:
    found = mapped(24, cut_short=LENGTH * 3 + 4, near=4)
    assert found.window is not None
    card = evidence_card(found, "e1")
    seen = "".join(piece.after.start for piece in passages(card) if piece.after is not None)
    assert seen == found.sample.context[found.window :]
    assert [piece.number for piece in passages(card) if piece.before and piece.after] == [4]


def test_tokens_and_their_segments_have_the_same_slot() -> None:
    gives = [(index, index, 0.5 + index / 100) for index in range(11)]
    card = evidence_card(mapped(60, response="one two three four five six seven", gives=gives), "e1")
    slots = {piece.number: piece.slot for piece in passages(card)}
    shaded = [piece for piece in card.response if piece.level]
    assert len(shaded) > SLOTS and all(slots[piece.number] == piece.slot for piece in shaded)
    used = [slot for slot in slots.values() if slot is not None]
    assert sorted(used) == list(range(SLOTS))


def test_a_long_response_keeps_what_was_given_and_counts_the_rest() -> None:
    response = " ".join(["word"] * 1500)
    found = mapped(60, response=response, gives=[(2, 700, 0.9)])
    card = evidence_card(found, "e1")
    shaded = [piece for piece in card.response if piece.level]
    assert [piece.token for piece in shaded] == [found.tokens[700]]
    shown = "".join(piece.space + piece.text for piece in card.response)
    left = sum(piece.left_out for piece in card.response)
    assert 0 < left < len(found.tokens) and shown.count("word") < 200
    assert len(card.rows) < card.tokens and 701 in {place for place, _ in card.rows}
