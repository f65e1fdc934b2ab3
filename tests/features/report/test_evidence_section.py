"""The page shows the maps of some samples, and counts the samples with named segments."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import evidence
from gateau_dagster.explanation.maps import (
    EvidenceMaps,
    SpanStrip,
    Stretch,
)
from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.report.build import evidence_shares
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.selection.evidence import NAMED
from tests.features.report.builders import LENGTH, inputs, page_of, raw, rows_of, sample
from tests.kit.project import configured
from tests.kit.tiny_models import text, tokenizer


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
