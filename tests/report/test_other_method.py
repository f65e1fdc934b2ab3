"""The page where another method than GATEAU decides: without the presets, or with them beside it."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster.report.build import counts, sample_cards, source_table, truth
from gateau_dagster.report.comparison import compare
from gateau_dagster.report.drawings import drawings
from gateau_dagster.report.inputs import ReportInputs

from .builders import config, inputs, methods, page_of, raw, scores

WITHOUT = 4  # samples that the method cannot score


def by(method: str = "length", count: int = 30, *, lengths: bool = False, **changes: Any) -> ReportInputs:
    """A run by a method that scores all but the last samples; `lengths`: theta_B has counted tokens."""
    ids = raw(count)["sample_id"]
    rng = np.random.default_rng(3)
    values = [round(float(value), 1) for value in rng.random(count - WITHOUT)]
    own = pl.DataFrame(
        {"sample_id": ids, "score": [*values, *[None] * WITHOUT]}, schema_overrides={"score": pl.Float64}
    )
    chosen = own.drop_nulls().sort("score", "sample_id", descending=[True, False]).head(3).select("sample_id")
    tokens = pl.DataFrame(
        {"sample_id": ids, "context_tokens": range(count), "response_tokens": range(count), "perplexity": [1.5] * count}
    )
    given = {
        "config": config(selection={"ground_truth": ["far"], "method": method}),
        "method_scores": own,
        "lengths": tokens if lengths else None,
        "combined_scores": None,
        "selected_subset": chosen,
        "efforts": {},
    }
    return replace(inputs(count), **(given | changes))


def test_the_page_is_whole_without_the_presets() -> None:
    page = page_of(by())
    sections = ("summary", "scores", "methods", "samples", "selected", "rejected", "training", "evaluation", "effort",
                "equations", "provenance")  # fmt: skip
    links = [attributes["href"] for attributes in page.attributes("a")]
    assert links == [*(f"#{name}" for name in sections), "explore.html"]
    assert all(page.text(name) for name in sections)
    everything = " ".join(page.text(name) for name in sections if name not in {"provenance", "methods", "equations"})
    for word in ("preset", "HMP", "CAS", "Eq. 6", "combined_scores", "θ", "α"):
        assert word not in everything, word
    assert "3 of 26 samples selected" in page.text("summary") and "No model scored them." in page.text("summary")
    assert "Ranked by method length." in page.text("samples")
    assert "No model scored these samples." in page.text("effort")
    assert "Eq. 1" in page.text("equations") and "Eq. 2" not in page.text("equations")


def test_samples_without_a_score_are_counted_and_never_shown() -> None:
    given = by()
    found = counts(given)
    assert (found.given, found.invalid, found.unscorable, found.scored, found.selected) == (31, 1, WITHOUT, 26, 3)
    cards = sample_cards(given)
    shown = {card.sample_id for card in cards.top + cards.bottom}
    assert not shown & {*raw(30)["sample_id"][-WITHOUT:]}
    assert "rejected, or without a score 5 (1 by validation, 4 by the method)" in page_of(given).text("summary")
    assert sum(line["scored"] for line in source_table(given.ranked)) == 26


def test_cards_have_the_method_s_own_score_and_rank() -> None:
    given = by()
    assert given.method_scores is not None
    known = {name: score for name, score in given.method_scores.iter_rows() if score is not None}
    ordered = sorted(known, key=lambda name: (-known[name], name))
    cards = sample_cards(given)
    top, bottom = cards.top, cards.bottom
    assert [card.sample_id for card in top] == ordered[:10] and [card.sample_id for card in bottom] == ordered[-10:]
    assert [card.rank for card in (*top, *bottom)] == [*range(1, 11), *range(17, 27)]
    assert all(card.score == known[card.sample_id] and card.ranks == [] for card in (*top, *bottom))
    texts = {row["sample_id"]: row for row in raw(30).iter_rows(named=True)}
    for card in top:
        wanted = {f"{part} bytes": len(texts[card.sample_id][part].encode()) for part in ("context", "response")}
        assert dict(card.facts) == wanted


def test_lengths_are_tokens_where_theta_b_has_counted_them() -> None:
    given = by("perplexity", lengths=True)
    page = page_of(given)
    assert "Scored with models.long" in page.text("summary") and "tokens or more" in page.text("selected")
    assert [name for name, _ in sample_cards(given).top[0].facts] == ["PPL θ_B", "context tokens", "response tokens"]
    assert "bytes or more" in page_of(by()).text("selected")


def test_how_often_the_method_is_right_by_counting_pairs() -> None:
    given = by()
    assert given.method_scores is not None
    found = given.method_scores.join(raw(30).select("sample_id", "source"), on="sample_id")
    rows = [(-1.0 if score is None else score, source == "far") for _, score, source in found.iter_rows()]
    pairs = [(one, two) for one, far in rows if far for two, other in rows if not other]
    wanted = sum(1.0 if one > two else 0.5 if one == two else 0.0 for one, two in pairs) / len(pairs)
    measured = truth(given, None)
    assert measured is not None and measured.auroc == pytest.approx(wanted, abs=1e-12)
    assert "method length puts the right one first in" in measured.sentence
    assert f"{wanted:.3f}" in page_of(given).text("summary")


def test_without_a_ground_truth_the_page_says_so() -> None:
    given = by(config=config(selection={"method": "length"}))
    assert truth(given, None) is None
    assert "No ground truth is configured" in page_of(given).text("summary")


def test_a_compared_gateau_brings_its_presets_back_and_not_its_ranking() -> None:
    chosen = config(selection={"ground_truth": ["far"], "method": "length", "compare": ["gateau"]})
    given = by(config=chosen, combined_scores=scores(30), methods=methods(names=("length", "gateau")))
    page = page_of(given)
    assert page.text("presets") and "Eq. 6" in page.text("equations")
    assert "Ranked by method length." in page.text("samples") and "3 of 26" in page.text("summary")


def test_the_pictures_are_those_of_the_method() -> None:
    given = by(training_log=None, evaluations={})
    assert set(drawings(given, compare(given))) == {"score", "lengths"}
    axes = drawings(given, None)["lengths"].figure.axes[0]
    assert axes.get_xlabel() == "context (bytes, logarithmic)"
    bars = drawings(given, None)["score"].figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == 26  # type: ignore[attr-defined]


def test_a_comparison_without_lengths_says_what_is_missing() -> None:
    found = methods(names=("length", "random"))
    unknown = replace(found.everything, context_tokens=None, response_tokens=None, perplexity=None)
    text = page_of(by(methods=replace(found, everything=unknown))).text("methods")
    assert "Lengths in tokens and perplexities stand in perplexity/long" in text
    assert "Does the length of the context" not in text
    assert "Does the length of the context" in page_of(by(methods=found)).text("methods")
