"""The map of a sample: exact text, whatever the tokenizer does to it, and which segments it names."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import Evidence, evidence
from gateau_dagster.models.prompt import encode
from gateau_dagster.selection.evidence import NAMED_GAIN
from tests.features.report.builders import LENGTH, rows_of, sample
from tests.kit import tiny_models
from tests.kit.error_codes import refused
from tests.kit.tiny_models import tokenizer
from tests.scoring.builders import slowly_divided

CONTEXT = tiny_models.text(1, 60)


def made(context: str = CONTEXT, response: str = "one two", **given_rows: Any) -> Evidence:
    one = sample(context, response)
    return evidence(one, rows_of(tokenizer(), one, **given_rows), tokenizer(), segment_length=LENGTH)


def shown(found: Evidence) -> list[str]:
    return [found.sample.context[segment.start : segment.end] for segment in found.segments]


@pytest.mark.parametrize("cut", [0, 1, 11, 40])
def test_a_segment_is_the_text_of_its_own_tokens(cut: int) -> None:
    found = made(cut=cut, cut_short=cut)
    ids = encode(tokenizer(), CONTEXT)[cut:]
    assert shown(found) == [tokenizer().decode([*ids[at : at + LENGTH]]) for at in range(0, len(ids), LENGTH)]
    assert CONTEXT[: found.unseen] + "".join(shown(found)) == CONTEXT
    assert (found.unseen > 0) == (cut > 0)


@settings(max_examples=60, deadline=None)
@given(context=st.text(min_size=1, max_size=60), response=st.text(min_size=1, max_size=20), cut=st.integers(0, 12))
def test_no_character_is_lost_or_shown_twice(context: str, response: str, cut: int) -> None:
    cut = min(cut, len(encode(tokenizer(), context)))
    found = made(context, response, cut=cut, cut_short=cut)
    assert context[: found.unseen] + "".join(shown(found)) == context
    assert "".join(token.text for token in found.tokens) == response
    asked = "\n\n### Instruction: say\n\n### Response: "
    assert len(found.tokens) == len(slowly_divided(tokenizer(), asked, response)[1])


def test_words_that_a_tokenizer_takes_without_the_space_between() -> None:
    from gateau_dagster.features.demo.language import build_tokenizer

    words = build_tokenizer(512)
    one = sample("  the baker\n\nadmires the tower of amber .  the baker admires\tthe tower", " note  metal metal-3 . ")
    found = evidence(one, rows_of(words, one, cut_short=LENGTH), words, segment_length=LENGTH)
    assert shown(found) == ["  the baker\n\nadmires the tower of amber .  ", "the baker admires\tthe tower"]
    assert [token.text for token in found.tokens] == [" note", "  metal", " metal-3", " . "]
    assert found.window is not None and one.context[found.window :] == "the baker admires\tthe tower"
    assert found.unseen == 0


def test_far_segments_that_decide_a_token_are_named() -> None:
    just = 0.1 + NAMED_GAIN
    found = made(
        near=2, gives=[(1, 0, 0.99), (3, 1, just - 0.01), (4, 2, just + 0.01), (5, 2, 0.3)], response="one two t"
    )
    assert found.named == [1, 4]
    assert [segment.index for segment in found.segments if segment.gain > 0.01] == [1, 3, 4, 5]
    assert [token.segment for token in found.tokens][:3] == [1, 3, 4]
    assert [token.named for token in found.tokens][:3] == [True, False, True]
    assert [segment.near for segment in found.segments] == [False] * (len(found.segments) - 2) + [True] * 2


def test_what_near_text_gives_as_well_is_named_by_nobody() -> None:
    last = len(made().segments) - 1
    found = made(near=1, gives=[(1, 0, 0.99), (last, 0, 0.98), (last, 1, 0.99)])
    assert found.named == []
    assert found.tokens[0].gain == pytest.approx(0.01, abs=1e-6) and found.tokens[0].segment == 1
    assert found.segments[last].gain == pytest.approx(0.88 + 0.89, abs=1e-5)


def test_each_token_has_its_five_probabilities() -> None:
    token = made(gives=[(0, 0, 0.7)]).tokens[0]
    figures = (token.short, token.none, token.near, token.far, token.full, token.gain)
    assert figures == pytest.approx((0.0497871, 0.1, 0.1, 0.7, 0.6065307, 0.6), abs=1e-6)


def test_without_context_nothing_is_named() -> None:
    found = made(context="")
    assert not found.segments and not found.named and found.unseen == 0
    assert {token.segment for token in found.tokens} == {None}


def test_a_theta_a_with_other_tokens_or_none_has_no_probabilities() -> None:
    one = sample(CONTEXT, "one two")
    rows = rows_of(tokenizer(), one)
    assert rows.short is not None
    other = replace(rows, short={**rows.short, "token_probability": [0.5]})
    for changed in (other, replace(rows, short=None)):
        found = evidence(one, changed, tokenizer(), segment_length=LENGTH)
        assert {token.short for token in found.tokens} == {None}
    assert found.window is None


def test_attention_that_was_not_observed_stays_unknown() -> None:
    assert {segment.attention for segment in made(attention=False).segments} == {None}
    assert None not in {segment.attention for segment in made().segments}


class Slow:
    """A tokenizer that does not say where its tokens are."""

    is_fast, name_or_path = False, "model"


@pytest.mark.parametrize(
    ("one", "words", "length", "code"),
    [
        (sample("another", "one two"), tokenizer(), LENGTH, "storage.out_of_date"),
        (sample(CONTEXT, "one"), tokenizer(), LENGTH, "storage.out_of_date"),
        (sample(CONTEXT, "one two"), tokenizer(), LENGTH + 5, "storage.out_of_date"),
        (sample(CONTEXT, "one two"), tiny_models.bert_tokenizer(), LENGTH, "storage.out_of_date"),
        (sample(CONTEXT, "one two"), Slow(), LENGTH, "models.no_offsets"),
    ],
)
def test_rows_that_do_not_belong_to_the_text_are_refused(one: Sample, words: Any, length: int, code: str) -> None:
    with refused(code):
        evidence(one, rows_of(tokenizer(), sample(CONTEXT, "one two")), words, segment_length=length)
