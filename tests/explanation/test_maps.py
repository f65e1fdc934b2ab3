"""Test the maps of a run, and the stretches of methods that read spans."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.explanation import maps as module
from gateau_dagster.explanation.evidence import evidence
from gateau_dagster.explanation.maps import (
    LEVELS,
    evidence_maps,
    level,
    named_by_sample,
    prompt_strip,
    segment_strip,
)
from gateau_dagster.methods.method import Spans
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.evidence import NAMED, named_of
from tests.features.report.builders import LENGTH, rows_of, sample
from tests.kit.error_codes import refused
from tests.kit.tiny_models import text, tokenizer
from tests.methods import measured
from tests.methods.configured import method_of


def test_shade_is_none_for_nothing_and_all_for_the_most() -> None:
    assert [level(value, 2.0) for value in (0.0, 0.01, 1.0, 2.0, 3.0)] == [0, 0, LEVELS // 2, LEVELS, LEVELS]
    assert level(0.0, 0.0) == 0


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
