"""The section on methods: what it says, with none, one, two and many methods."""

import math
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.comparison.result import MethodComparison, Point, SegmentLengthSweep
from gateau_dagster.config import PRESETS, Preset, SelectionConfig
from gateau_dagster.features.report.build import MethodsSection, methods_section
from gateau_dagster.features.report.drawings import method_drawings
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.selection.presets import terms, with_terms
from tests.features.report.builders import NOT_A_NUMBER, Page, inputs, methods, page_of, raw, scores

ALL = ("method_profiles", "method_correlations", "method_lengths", "disputed", "alpha", "segment_length")


def _page(comparison: MethodComparison | None, count: int = 30, **changes: Any) -> Page:
    return page_of(inputs(count, methods=comparison, **changes), *ALL)


def _given(comparison: MethodComparison, **changes: Any) -> ReportInputs:
    return inputs(30, methods=comparison, **changes)


def test_findings_name_no_correlation_over_a_few_samples() -> None:
    comparison = methods()
    least = min(comparison.pairs, key=lambda pair: 1.0 if pair.spearman is None else pair.spearman)
    pairs = tuple(replace(pair, common=2, spearman=-1.0) if pair is least else pair for pair in comparison.pairs)
    found = MethodsSection(comparison=replace(comparison, pairs=pairs), disputed=[]).extremes
    assert found is not None and {found[1].first, found[1].second} != {least.first, least.second}


def test_the_overlap_table_is_sorted_and_shows_the_chosen_number_once() -> None:
    comparison = methods()
    section = MethodsSection(comparison=comparison, disputed=[])
    shown = [text.replace("\u00a0", " ") for text, _ in section.levels]
    assert shown == ["best 10 % (as chosen)", "best 30 %", "best 50 %"]
    assert MethodsSection(comparison=methods(chosen=7), disputed=[]).levels[-1][0] == "first 7 (as chosen)"
    shares = [pair.overlaps[0].overlap for _, pair in section.overlaps]
    assert section.overlaps[-1][0] == "nothing"
    assert shares[0] is not None and shares[1] is not None and shares[0] >= shares[1] and shares[2] is None


def test_disputed_samples_show_every_rank_and_their_texts_escaped() -> None:
    evil = "</div></details><script>alert('x')</script>"
    comparison = methods()
    changes = dict.fromkeys(("source", "context", "instruction", "response"), evil)
    page = _page(comparison, raw=raw(30, **changes))
    text = page.text("methods")
    assert not page.attributes("script") and text.count(evil) == 4 * len(comparison.disputed)
    assert all(one.sample_id in text for one in comparison.disputed)
    section = methods_section(_given(comparison))
    assert section is not None
    card, facts = section.disputed[0], comparison.disputed[0]
    assert {place.name: place.rank for place in card.places} == dict(zip(comparison.names, facts.ranks, strict=True))
    assert card.places[-1].rank is None and card.ranked == card.places[:-1]
    assert [place.share for place in card.ranked] == sorted(place.share for place in card.ranked if place.share)


def test_hostile_names_of_sources_are_shown_and_never_obeyed() -> None:
    comparison = replace(methods(), sources=("<script>x</script>", "a\u202eb", "c" * 200))
    page = _page(comparison)
    assert not page.attributes("script")
    text = page.text("methods")
    assert "<script>x</script>" in text and "a\ufffdb" in text and "c" * 61 not in text


def test_sources_without_a_colour_of_their_own_share_one() -> None:
    names = tuple(f"source {number}" for number in range(11))
    swatches = MethodsSection(comparison=replace(methods(), sources=names), disputed=[]).swatches
    assert [name for _, name in swatches] == [*names[:7], "other sources"]
    assert len({colour for colour, _ in swatches}) == 8


def test_a_disputed_sample_that_is_gone_from_raw_is_still_listed() -> None:
    comparison = methods()
    gone = comparison.disputed[0].sample_id
    section = methods_section(_given(comparison, raw=raw(30).filter(pl.col("sample_id") != gone)))
    assert section is not None
    assert (section.disputed[0].sample_id, section.disputed[0].source) == (gone, "(unknown)")


def test_segment_lengths_have_a_picture_where_there_are_two() -> None:
    points = tuple(Point(value=value, spearman=0.5, overlap=0.25, auroc=0.75) for value in (64, 128))
    sweep = SegmentLengthSweep(configured=128, samples=29, chosen=3, points=points, single=(0, 1))
    assert "segment_length" in method_drawings(replace(methods(), segment_length=sweep))
    assert "segment_length" not in method_drawings(
        replace(methods(), segment_length=replace(sweep, points=points[:1], single=(0,)))
    )


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "nothing")])
def test_few_samples_leave_no_broken_number(count: int, names: tuple[str, ...]) -> None:
    page = _page(methods(count, names=names), count)
    assert not NOT_A_NUMBER.search(page.text("methods"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a",), {"method_profiles"}),
        (("a", "b"), {"method_profiles", "method_lengths", "disputed"}),
        (tuple(f"method_{number}_{'x' * 60}" for number in range(15)), set(ALL) - {"alpha", "segment_length"}),
    ],
)
def test_pictures_by_number_of_methods(names: tuple[str, ...], expected: set[str]) -> None:
    drawn = method_drawings(methods(names=names))
    assert set(drawn) == expected
    assert all(drawing.alt for drawing in drawn.values())
    assert len({drawing.alt for drawing in drawn.values()}) == len(drawn)


def known(value: float | None) -> float:
    assert value is not None
    return value


@pytest.mark.parametrize("preset", PRESETS)
def test_the_terms_of_every_sample_add_up_to_its_score(preset: Preset) -> None:
    selection = SelectionConfig(preset=preset, alpha=0.8)
    frame = with_terms(scores(12, preset=preset), preset)
    assert frame.height == 12
    for row in frame.iter_rows(named=True):
        found = terms(row, selection)
        total = sum(term.weight * known(term.value) for term in (found.first, found.second))
        assert found.score == row["score"] == pytest.approx(total, rel=1e-12)
        assert (found.first.weight, found.second.weight) == (0.8, pytest.approx(0.2))


def test_the_terms_of_a_sample_do_not_depend_on_which_rows_are_looked_at() -> None:
    frame = with_terms(scores(12, preset="paper"), "paper")
    again = with_terms(scores(12, preset="paper").sample(fraction=1.0, shuffle=True, seed=1), "paper")
    one, two = (each.sort("sample_id").select("sample_id", "hmp_term", "cas_term") for each in (frame, again))
    assert_frame_equal(one, two, rel_tol=1e-12, abs_tol=0)


def test_what_a_term_is_made_of_gives_its_value() -> None:
    robust = with_terms(scores(12), "robust")
    for row in robust.iter_rows(named=True):
        found = terms(row, SelectionConfig())
        long, short = (known(value) for _, value in found.first.made_of)
        assert found.first.value == pytest.approx(long - short)
    paper = with_terms(scores(12, preset="paper"), "paper")
    hmp = paper["hmp_paper"].to_list()
    for row in paper.iter_rows(named=True):
        found = terms(row, SelectionConfig(preset="paper"))
        assert dict(found.first.made_of)["HMP"] == row["hmp_paper"]
        share = math.exp(row["hmp_paper"]) / sum(math.exp(value) for value in hmp)
        assert found.first.value == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_sample_of_one_segment_has_no_second_term_and_something_stands_for_it(preset: Preset) -> None:
    frame = with_terms(scores(5, segments=1, preset=preset), preset)
    for row in frame.iter_rows(named=True):
        found = terms(row, SelectionConfig(preset=preset, alpha=0.8))
        assert found.second.value is None
        assert row["score"] == pytest.approx(0.8 * known(found.first.value) + found.instead)
        assert "–" not in found.sum
