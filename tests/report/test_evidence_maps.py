"""Maps from a store that a run made, and which segments whole tables name."""

from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.report import evidence_card as module
from gateau_dagster.report.evidence import evidence
from gateau_dagster.report.evidence_card import evidence_maps, named_by_sample, named_of
from tests import tiny_models
from tests.error_codes import refused
from tests.report.evidence_rows import LENGTH, rows_of, sample


def samples_of(state: State) -> list[Sample]:
    rows = state.read("raw_long_sft").drop("digest").iter_rows(named=True)
    return [Sample(**row) for row in rows]


def test_the_maps_of_a_run(whole_run: Path) -> None:
    state = State(config=load_project(whole_run))
    samples = samples_of(state)
    found = evidence_maps(state, samples[:7])
    assert not found.missing and list(found.maps) == [one.sample_id for one in samples[:7]]
    cam = {row["sample_id"]: row for row in state.read("cam").iter_rows(named=True)}
    for name, one in found.maps.items():
        assert len(one.segments) == cam[name]["segments"] and "".join(t.text for t in one.tokens) == one.sample.response
    named = dict(named_by_sample(state).iter_rows())
    assert len(named) == len(samples)
    assert {name: one.named for name, one in found.maps.items()} == {name: named[name] for name in found.maps}


def test_under_the_paper_s_preset_segments_show_what_they_add_to_cas(whole_run: Path) -> None:
    config = load_project(whole_run)
    assert not evidence_maps(State(config=config), samples_of(State(config=config))[:3]).strips
    selection = config.selection.model_copy(update={"preset": "paper", "compare": ["cam", "length"]})
    state = State(config=config.model_copy(update={"selection": selection}))
    found = evidence_maps(state, samples_of(state)[:3])
    cas = {row["sample_id"]: row["cas"] for row in state.read("cam").iter_rows(named=True)}
    assert len(found.strips) == 3
    for name, (strip,) in found.strips.items():
        assert strip.methods == ["gateau", "cam"] and len(strip.stretches) == len(found.maps[name].segments)
        assert sum(each.added for each in strip.stretches) == pytest.approx(cas[name])


def test_a_sample_without_rows_has_no_map(whole_run: Path) -> None:
    state = State(config=load_project(whole_run))
    assert not evidence_maps(state, [sample("a context", "a response", "unknown")]).maps


@pytest.mark.parametrize(
    ("compare", "mapped", "window"), [([], False, False), (["perplexity"], True, False), (["far_gain"], True, True)]
)
def test_only_tables_that_the_methods_read_are_read(
    whole_run: Path, compare: list[str], mapped: bool, window: bool
) -> None:
    config = load_project(whole_run)
    selection = config.selection.model_copy(update={"method": "far_gain_fg", "compare": compare})
    state = State(config=config.model_copy(update={"selection": selection}))
    found = evidence_maps(state, samples_of(state)[:3])
    assert (len(found.maps) == 3) == mapped == (not found.missing)
    assert any(one.window is not None for one in found.maps.values()) == window


def test_a_map_is_left_out_where_its_table_is_not_made_yet(whole_run: Path) -> None:
    config = load_project(whole_run)
    options = {"delta_perplexity": {"segment_length": 16}}
    selection = config.selection.model_copy(update={"compare": ["delta_perplexity"], "options": options})
    state = State(config=config.model_copy(update={"selection": selection}))
    samples = samples_of(state)[:3]
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
    state = State(config=load_project(whole_run))
    found = evidence_maps(state, samples_of(state)[:2])
    assert not found.maps and state.config.models["long"].path in found.missing


@cache
def tokenizer() -> Any:
    return tiny_models.tokenizer()


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
        one = sample(tiny_models.text(1, 60), "one two three", name)
        rows[name] = (one, rows_of(tokenizer(), one, gives=gives))
    cam = pl.DataFrame([each.cam for _, each in rows.values()], schema=tables.schema(tables.CAM))
    named = dict(named_of(cam).iter_rows())
    assert named == {"none": [], "one": [1], "twice": [2], "two": [0, 3], "weak": [], "near": []}
    assert named == {
        name: evidence(one, each, tokenizer(), segment_length=LENGTH).named for name, (one, each) in rows.items()
    }
    assert named_of(cam.clear()).schema == module.NAMED


def test_maps_without_the_figures_of_theta_a(whole_run: Path) -> None:
    config = load_project(whole_run)
    selection = config.selection.model_copy(update={"method": "far_gain_fg", "compare": ["perplexity"]})
    state = State(config=config.model_copy(update={"selection": selection}))
    assert "perplexity/short" not in state.asset("report").reads
    found = evidence_maps(state, samples_of(state)[:2])
    assert len(found.maps) == 2
    assert {token.short for one in found.maps.values() for token in one.tokens} == {None}
