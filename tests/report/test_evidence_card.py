"""What of a map is printed and linked, on a page of real maps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.methods.method import Spans
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.report import evidence_card as module
from gateau_dagster.report.build import evidence_shares
from gateau_dagster.report.evidence import Evidence, evidence
from gateau_dagster.report.evidence_card import (
    LEVELS,
    SLOTS,
    EvidenceCard,
    EvidenceMaps,
    Fold,
    Passage,
    SpanStrip,
    Stretch,
    evidence_card,
    evidence_maps,
    level,
    named_by_sample,
    prompt_strip,
    segment_strip,
)
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.selection.evidence import NAMED, named_of
from tests.error_codes import refused
from tests.methods import measured
from tests.methods.configured import method_of
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


def test_shade_is_none_for_nothing_and_all_for_the_most() -> None:
    assert [level(value, 2.0) for value in (0.0, 0.01, 1.0, 2.0, 3.0)] == [0, 0, LEVELS // 2, LEVELS, LEVELS]
    assert level(0.0, 0.0) == 0


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


def of_run(whole_run: Path, **selection: Any) -> tuple[State, list[Sample]]:
    """The run with another selection, and its samples."""
    config = load_project(whole_run)
    state = state_of(config=config.model_copy(update={"selection": config.selection.model_copy(update=selection)}))
    return state, [Sample(**row) for row in state.read("raw_long_sft").drop("digest").iter_rows(named=True)]


def test_the_maps_of_a_run(whole_run: Path) -> None:
    state, samples = of_run(whole_run)
    found = evidence_maps(state, samples[:7])
    assert not found.missing and list(found.maps) == [one.sample_id for one in samples[:7]]
    cam = {row["sample_id"]: row for row in state.read("cam").iter_rows(named=True)}
    for name, one in found.maps.items():
        assert len(one.segments) == cam[name]["segments"] and "".join(t.text for t in one.tokens) == one.sample.response
    named = dict(named_by_sample(state).iter_rows())
    assert len(named) == len(samples)
    assert {name: one.named for name, one in found.maps.items()} == {name: named[name] for name in found.maps}
    assert not found.strips
    assert not evidence_maps(state, [sample("a context", "a response", "unknown")]).maps, "it has no rows"


def test_under_the_paper_s_preset_segments_show_what_they_add_to_cas(whole_run: Path) -> None:
    state, samples = of_run(whole_run, preset="paper", compare=["cam", "length"])
    found = evidence_maps(state, samples[:3])
    cas = {row["sample_id"]: row["cas"] for row in state.read("cam").iter_rows(named=True)}
    assert len(found.strips) == 3
    for name, (strip,) in found.strips.items():
        assert strip.methods == ["gateau", "cam"] and len(strip.stretches) == len(found.maps[name].segments)
        assert sum(each.added for each in strip.stretches) == pytest.approx(cas[name])


@pytest.mark.parametrize(
    ("compare", "mapped", "window"), [([], False, False), (["perplexity"], True, False), (["far_gain"], True, True)]
)
def test_only_tables_that_the_methods_read_are_read(
    whole_run: Path, compare: list[str], mapped: bool, window: bool
) -> None:
    state, samples = of_run(whole_run, method="far_gain_fg", compare=compare)
    found = evidence_maps(state, samples[:3])
    assert (len(found.maps) == 3) == mapped == (not found.missing)
    assert any(one.window is not None for one in found.maps.values()) == window
    known = [token.short is not None for one in found.maps.values() for token in one.tokens]
    assert known == [window] * len(known) and ("perplexity/short" in state.asset("report").reads) == window


def test_a_map_is_left_out_where_its_table_is_not_made_yet(whole_run: Path) -> None:
    options = {"delta_perplexity": {"segment_length": 16}}
    state, samples = of_run(whole_run, compare=["delta_perplexity"], options=options)
    samples = samples[:3]
    with refused("storage.not_computed", "segment_pairs"):
        evidence_maps(state, samples)
    found = evidence_maps(state, samples, lambda asset: not asset.startswith("segment_pairs"))
    assert len(found.maps) == 3 and not found.strips and not found.missing
    assert not evidence_maps(state, samples, lambda asset: False).maps


@pytest.mark.parametrize("fast", [False, None])
def test_why_there_is_no_map_is_said(whole_run: Path, monkeypatch: pytest.MonkeyPatch, fast: bool | None) -> None:
    class Slow:
        is_fast = False

    monkeypatch.setattr(module, "known_tokenizer", lambda *_: None if fast is None else Slow())
    state, samples = of_run(whole_run)
    found = evidence_maps(state, samples[:2])
    assert not found.maps and state.config.models["long"].path in found.missing


def test_whole_tables_name_what_the_maps_name() -> None:
    given = {
        "none": [],
        "one": [(1, 0, 0.9)],
        "twice": [(2, 0, 0.9), (2, 1, 0.9)],
        "two": [(3, 0, 0.9), (0, 2, 0.8)],
        "weak": [(1, 0, 0.5)],
        "near": [(-1, 0, 0.9)],
    }
    rows = {}
    for name, gives in given.items():
        one = sample(text(1, 60), "one two three", name)
        rows[name] = (one, rows_of(tokenizer(), one, gives=gives))
    cam = pl.DataFrame([each.cam for _, each in rows.values()], schema=tables.schema(tables.CAM))
    named = dict(named_of(cam).iter_rows())
    assert named == {"none": [], "one": [1], "twice": [2], "two": [0, 3], "weak": [], "near": []}
    assert named == {
        name: evidence(one, each, tokenizer(), segment_length=LENGTH).named for name, (one, each) in rows.items()
    }
    assert named_of(cam.clear()).schema == NAMED


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


OPTIONS: dict[str, dict[str, Any]] = {
    "ladm": {"span_length": 16, "local_spans": 2, "earlier_stride": 2, "later_stride": 3, "first_scored": 5},
    "delta_perplexity": {"segment_length": 64, "pairs": 9, "threshold": -0.04},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_stretch_is_the_text_of_its_span(name: str) -> None:
    tok = tokenizer()
    own = method_of(name, options=OPTIONS[name]).span_map()
    assert own is not None
    rows = measured.outcomes(name, OPTIONS[name])
    shown = 0
    for one, row in zip(measured.prose(), rows, strict=True):
        spans = None if isinstance(row, Reject) else own.spans(row)
        if spans is None:
            continue
        shown += 1
        strip = prompt_strip([name], own.adds, one, spans, tok, "gateau")
        prompt = build_prompt(tok, one, max_length=10**9)
        ids = prompt.ids[1:] if spans.of == "prompt without bos" else prompt.ids
        before = len(prompt.prefix) - (spans.of == "prompt without bos")
        after = before + len(prompt.context)
        expected = []
        for number, added in enumerate(spans.added):
            begin = spans.first + number * spans.length
            inside = ids[max(begin, before) : min(begin + spans.length, after)] if begin < after else ()
            if inside and begin + spans.length > before:
                expected.append((tok.decode([*inside]), added))
        assert [(one.context[each.start : each.end], each.added) for each in strip.stretches] == expected
        assert sum(added for _, added in expected) + strip.elsewhere == pytest.approx(sum(spans.added))
    assert shown == 2


def spans_of(one: Sample, dropped: int) -> Spans:
    tokens = build_prompt(tokenizer(), one, max_length=10**9).length - dropped
    return Spans(of="prompt", tokens=tokens, first=3, length=10, added=[float(n) for n in range((tokens - 3) // 10)])


def test_what_the_model_did_not_see_has_no_stretch() -> None:
    one = sample(text(1, 60), "one two")
    whole, cut = (prompt_strip(["ladm"], "CDS", one, spans_of(one, n), tokenizer(), "gateau") for n in (0, 25))
    unseen = tokenizer().decode(tokenizer().encode(one.context, add_special_tokens=False)[:25])
    assert whole.stretches[0].start == 0 and cut.stretches[0].start == len(unseen)
    assert whole.stretches[-1].end == cut.stretches[-1].end == len(one.context)


@pytest.mark.parametrize("dropped", [-1, 10**6])
def test_spans_of_another_text_are_refused(dropped: int) -> None:
    one = sample(text(1, 60), "one two")
    spans = Spans(of="prompt", tokens=spans_of(one, 0).tokens - dropped, first=0, length=10, added=[1.0])
    with pytest.raises(GateauError, match="sample s was scored"):
        prompt_strip(["ladm"], "CDS", one, spans, tokenizer(), "gateau")


def test_segments_are_those_of_the_map() -> None:
    one = sample(text(1, 60), "one two")
    found = evidence(one, rows_of(tokenizer(), one), tokenizer(), segment_length=LENGTH)
    added = [float(n) for n in range(len(found.segments))]
    spans = Spans(of="context", tokens=0, first=0, length=LENGTH, added=added)
    strip = segment_strip(["cam"], "CAS", found, spans)
    places = [(segment.start, segment.end) for segment in found.segments]
    assert [(each.start, each.end) for each in strip.stretches] == places
    assert [each.added for each in strip.stretches] == added


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
