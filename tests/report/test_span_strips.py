"""Where spans of tokens stand in a context, from rows that a tiny model made; and how they are shown."""

from typing import Any

import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Spans
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.report.evidence import evidence
from gateau_dagster.report.evidence_card import (
    EvidenceMaps,
    SpanStrip,
    Stretch,
    prompt_strip,
    segment_strip,
    strip_card,
)
from tests.methods import measured
from tests.methods.configured import method_of
from tests.report.builders import inputs, page_of
from tests.report.evidence_rows import LENGTH, rows_of, sample
from tests.tiny_models import text, tokenizer

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
    with pytest.raises(GateauError, match="sample s was measured"):
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
    card = strip_card(strip)
    assert card.most == [(-0.4, "<b>bb"), (0.1, "aaaa")]
    assert [bar.level for bar in card.bars] == [2, 8, 0]
    assert sum(bar.width for bar in card.bars) == pytest.approx(1000, abs=0.05)
    page = page_of(inputs(2, evidence=lambda _: EvidenceMaps(strips={"s000000": [strip]})))
    assert [rect["class"] for rect in page.attributes("rect")] == ["v2", "v8"]
    assert "ladm, other" in page.text("samples") and "<b>bb" in page.text("samples") and "0.25" in page.text("samples")
