"""What of a map is printed and linked, on a page of real maps."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import Evidence, evidence
from gateau_dagster.explanation.maps import (
    EvidenceMaps,
    SpanStrip,
    Stretch,
)
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.report.build import evidence_shares
from gateau_dagster.report.evidence_card import SLOTS, EvidenceCard, Fold, Passage, evidence_card
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.selection.evidence import NAMED
from tests.project import configured
from tests.report.builders import LENGTH, inputs, page_of, raw, rows_of, sample
from tests.tiny_models import text, tokenizer


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


def test_a_page_of_maps_is_linked_escaped_and_marks_what_no_model_saw() -> None:
    def maps(samples: Sequence[Sample]) -> EvidenceMaps:
        made = {}
        for one in samples:
            rows = rows_of(tokenizer(), one, cut=9, cut_short=20, gives=[(0, 1, 0.9), (2, -1, 0.7)])
            made[one.sample_id] = evidence(one, rows, tokenizer(), segment_length=LENGTH)
        return EvidenceMaps(maps=made)

    texts = raw(4, context="<b>bold</b> & \u202eturned " + text(1, 40), response="<i>one</i> two & three")
    found = page_of(inputs(4, evidence=maps, raw=texts))
    places = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    hrefs = (str(link["href"]) for link in found.attributes("a"))
    links = {href.removeprefix("#") for href in hrefs if href.startswith("#")}
    assert len(places) == len(set(places)) and links <= set(places), "each link leads to one place"
    assert {f"e{card}-{number}" for card in range(1, 5) for number in (1, 3)} <= links
    assert not found.attributes("script")
    shown = found.text("samples")
    assert "<b>" in shown and ">one</i> two &" in shown and "\u202e" not in shown
    summary = found.text("summary")
    assert "Far segments 1, 3 of " in summary and "explain the shaded words" in summary and ">one</i> two" in summary
    assert len(found.attributes("del")) == 4 and shown.count("No model saw the first") == 4


def test_why_there_are_no_maps_stands_on_the_page() -> None:
    reason = "The tokenizer is not here."
    found = page_of(inputs(4, evidence=lambda _: EvidenceMaps(missing=reason)))
    assert reason in found.text("samples") and "Context, its two ends" in found.text("samples")


FILLER = "the baker admires the tower of amber . "  # a segment
FACTS = {1: "metal", 3: "planet", 5: "spice"}  # segments, with what stands in them


# Source, instruction and the segments that the map shall name, by sample.
SHARED = {
    "s000000": ("far", "recall metal planet", [1, 3]),
    "s000001": ("far", "recall metal planet", [1]),
    "s000002": ("far", "recall metal", [1, 3]),
    "s000003": ("near", "recall spice", []),
    "s000004": ("near", "recall spice", [2]),
    "s000005": ("no_context", "tell about baker", []),
}


def given(**changes: Any) -> ReportInputs:
    words = build_tokenizer(512)
    facts = [f"note {FACTS[place]} {FACTS[place]}-1 . the baker . ." for place in FACTS]
    context = FILLER + " ".join(f"{fact} {FILLER}" for fact in facts)
    raw = pl.DataFrame(
        [
            {"sample_id": name, "source": source, "context": context, "instruction": asked, "response": "one two three"}
            for name, (source, asked, _) in SHARED.items()
        ]
    ).with_columns(digest=pl.lit("x"))
    named = pl.DataFrame([(name, places) for name, (*_, places) in SHARED.items()], schema=NAMED, orient="row")

    def maps(samples: Sequence[Sample]) -> EvidenceMaps:
        made = {}
        for one in samples:
            gives = [(place, token, 0.9) for token, place in enumerate(SHARED[one.sample_id][2])]
            rows = rows_of(words, one, near=2, gives=gives)
            made[one.sample_id] = evidence(one, rows, words, segment_length=LENGTH)
        return EvidenceMaps(maps=made)

    demo = configured(selection={"ground_truth": ["far"]}, demo={})
    fields = {"config": demo, "raw": raw.select(*tables.schema(tables.RAW_LONG_SFT).names()).lazy()}
    return inputs(6, **(fields | {"named": named, "evidence": maps} | changes))


def test_the_shares_are_those_of_counting() -> None:
    found = evidence_shares(given())
    assert found is not None
    assert [(line.source, line.samples, line.named, line.right) for line in found.sources] == [
        ("far", 3, 3, 1),
        ("near", 2, 1, 1),
        ("no_context", 1, 0, 1),
    ]
    assert (found.sources[0].share, found.sources[1].share) == (1.0, 0.5)
    assert "1 (33.3" in found.sentence and "2 (66.7" in found.sentence
    page = page_of(given())
    assert found.sentence.replace("\u00a0", " ") in page.text("evidence") and "#evidence" in {
        link["href"] for link in page.attributes("a")
    }


def test_of_other_data_nothing_is_said_to_be_right() -> None:
    found = evidence_shares(given(config=configured(selection={"ground_truth": ["far"]})))
    assert found is not None and not found.sentence
    assert {line.right for line in found.sources} == {None} and {line.right_share for line in found.sources} == {None}


def test_many_sources_are_one_line_in_the_end() -> None:
    raw = given().raw.lazy().collect()
    parts = [raw.head(1).with_columns(sample_id=pl.lit(f"x{n}"), source=pl.lit(f"source {n}")) for n in range(30)]
    many = pl.concat(parts)
    named = many.select("sample_id", named=pl.lit([1], dtype=pl.List(pl.Int32())))
    found = evidence_shares(given(raw=many.lazy(), named=named, config=configured()))
    assert found is not None and len(found.sources) == 21
    assert (found.sources[-1].samples, found.sources[-1].named) == (10, 10)


def test_without_measured_segments_there_is_no_section() -> None:
    assert evidence_shares(inputs(6)) is None
    assert evidence_shares(given(named=NAMED.to_frame())) is None


def test_a_card_shows_what_adds_most_first() -> None:
    one = sample("aaaa<b>bbcccc", "r")
    stretches = [
        Stretch(start=0, end=4, added=0.1),
        Stretch(start=4, end=9, added=-0.4),
        Stretch(start=9, end=13, added=0.0),
    ]
    strip = SpanStrip(methods=["ladm", "other"], adds="CDS", sample=one, stretches=stretches, elsewhere=0.25)
    assert strip.most == [(-0.4, "<b>bb"), (0.1, "aaaa")]
    assert [bar.level for bar in strip.bars] == [2, 8, 0]
    assert sum(bar.width for bar in strip.bars) == pytest.approx(1000, abs=0.05)
    page = page_of(inputs(2, evidence=lambda _: EvidenceMaps(strips={"s000000": [strip]})))
    assert [rect["class"] for rect in page.attributes("rect")] == ["v2", "v8"]
    assert "ladm, other" in page.text("samples") and "<b>bb" in page.text("samples") and "0.25" in page.text("samples")
