"""A sample's score, taken apart: the terms are the preset's, and add up to what ranks the sample."""

import math
from dataclasses import replace

import pytest

from gateau_dagster.config import PRESETS, Preset, SelectionConfig
from gateau_dagster.report.formula import terms, with_terms

from .builders import config, inputs, page_of, scores


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
    columns = ["sample_id", "hmp_term", "cas_term"]
    for one, two in zip(frame.sort("sample_id").select(columns).rows(), again.sort("sample_id").select(columns).rows(),
                        strict=True):  # fmt: skip
        assert one[0] == two[0] and one[1:] == pytest.approx(two[1:], rel=1e-12)


def test_what_a_term_is_made_of_gives_its_value() -> None:
    robust = with_terms(scores(12), "robust")
    for row in robust.iter_rows(named=True):
        found = terms(row, SelectionConfig())
        parts = dict(found.first.made_of)
        assert found.first.value == pytest.approx(known(parts["mean p under θ_B"]) - known(parts["mean p under θ_A"]))
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


@pytest.mark.parametrize("preset", PRESETS)
def test_the_page_prints_the_formula_of_the_preset_that_was_used_first(preset: Preset) -> None:
    section = {"preset": preset, "ground_truth": ["far"], "alpha": 0.7}
    given = inputs(12, combined_scores=scores(12, preset=preset), config=config(selection=section))
    text = page_of(given).text("equations")
    formulas = {
        "robust": "score = α · HMPp + (1 − α) · FG",
        "official": "score = α · softmaxD(HMP) + (1 − α) · CAS",
        "paper": "score = α · softmaxD(HMP) + (1 − α) · softmaxD(CAS)",
    }
    places = {name: text.index(formula) for name, formula in formulas.items()}
    assert min(places, key=lambda name: places[name]) == preset
    assert "α = 0.7, 1 − α = 0.3" in text


def test_a_page_of_another_method_says_what_its_score_means() -> None:
    found = scores(6).select("sample_id", "score")
    changes = {"config": config(selection={"method": "random"}), "combined_scores": None, "method_scores": found}
    page = page_of(replace(inputs(6), **changes))
    assert "Selected by random. A high score means: Nothing" in page.text("equations")
