"""The page: what is on it, what is not, and that nothing in a sample can act on it."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from gateau_dagster.data.rejects import RejectKind, Rejects
from gateau_dagster.explanation.card import snippet
from gateau_dagster.features.report.build import (
    breakable,
    build_report,
    counts,
    reject_groups,
    sample_cards,
    source_table,
    truth,
)
from gateau_dagster.features.report.drawings import benchmark_outcomes, drawings, training_facts
from gateau_dagster.features.report.inputs import ReportInputs, compare
from gateau_dagster.pipeline.losses import DataLoss, Totals, Truncation
from gateau_dagster.plots.score_plots import MARKS
from gateau_dagster.readable import printable
from tests.features.evaluation.quiz import with_quiz
from tests.features.report.builders import (
    NOT_A_NUMBER,
    Page,
    html_of,
    inputs,
    methods,
    page_of,
    raw,
    scores,
    training_log,
)
from tests.kit.project import configured

SECTIONS = (
    "summary", "scores", "presets", "samples", "selected", "rejected", "training", "evaluation", "effort",
    "equations", "provenance",
)  # fmt: skip


def _page(count: int = 30, **changes: Any) -> Page:
    return page_of(inputs(count, **changes))


@pytest.fixture(scope="module")
def plain() -> Page:
    """The page of a whole run."""
    return _page()


def test_every_section_is_there_and_the_navigation_leads_to_it(plain: Page) -> None:
    links = [attributes["href"] for attributes in plain.attributes("a")]
    assert links == [*(f"#{name}" for name in SECTIONS), "explore.html", "explore.html"]
    assert all(plain.text(name) for name in SECTIONS) and "totals" not in plain.text_of


def test_the_first_screen_says_which_samples_were_chosen_and_what_to_do_with_them(plain: Page) -> None:
    summary = plain.text("summary")
    cards = sample_cards(inputs(30)).top
    assert [card.selected for card in cards[:4]] == [True, True, True, False]
    for card in cards[:3]:
        assert all(text in summary for text in (f"#{card.rank}", card.sample_id, card.instruction.start))
    assert cards[3].sample_id not in summary
    assert "gateau export messages" in summary and "selected_subset.parquet" in summary


def test_notes_of_features_are_on_the_first_screen(plain: Page) -> None:
    shown = _page(notes=[Markup("See <code>this</code>."), Markup("And that.")]).text("summary")
    assert "See this." in shown and "And that." in shown and "See this." not in plain.text("summary")


def test_the_data_stands_in_one_table_where_it_is_known() -> None:
    kinds = (RejectKind(kind="empty <response>", count=2, examples=()),)
    cut = Truncation(samples=9, cut=1, tokens=5000, cut_tokens=120, limit="")
    scored = Totals(asset="cam", rows=7, rejected=Rejects(given=9, count=2, kinds=kinds), truncation=cut, tokens=4880,
                    seconds=7200.0)  # fmt: skip
    page = _page(totals=[scored])
    for text in ("7", "2 x empty <response>", "5,000", "120", "4,880", "2.0 h"):
        assert text in page.text("totals")
    assert "#totals" in [attributes["href"] for attributes in page.attributes("a")]


def test_fingerprints_and_configuration_are_folded() -> None:
    given = inputs(6, fingerprints={f"asset {number}": str(number) * 64 for number in range(9)})
    html = build_report(given, compare(given), {})
    folded = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", html, re.DOTALL)
    inside = {re.sub("<[^>]*>", "", head): body for head, body in folded}
    assert "asset 8" in inside["9 fingerprints"]
    assert "long_sft:" in inside["Configuration, with all defaults filled in"]


def test_text_of_samples_is_shown_and_never_obeyed() -> None:
    evil = "</div></details><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>{{ 7 * 7 }}&lt;"
    changes = dict.fromkeys(("source", "context", "instruction", "response"), evil)
    reject = pl.DataFrame({"sample_id": [evil], "reason": [evil]})
    changes["response"] += "a\u202eb\x00c\x1bd"
    page = _page(raw=raw(30, **changes), rejected={"cam": reject}, fingerprints={evil: evil}, command=evil,
                 config=configured(long_sft={"path": evil}))  # fmt: skip
    assert not page.attributes("script")
    assert all((image["src"] or "").startswith("data:") for image in page.attributes("img"))
    assert page.text("samples").count(evil) >= 4 * 20
    assert evil in page.text("rejected") and evil in page.text("provenance")
    assert "a\ufffdb\ufffdc\ufffdd" in page.text("samples"), "hidden characters are made visible"


def test_the_summary_counts() -> None:
    shown = counts(inputs(30, raw=raw(32)))
    assert (shown.given, shown.invalid, shown.unscorable, shown.scored, shown.selected) == (33, 1, 2, 30, 3)
    text = _page(30, raw=raw(32)).text("summary")
    assert "3 of 30 samples selected" in text
    assert "33 long samples in" in text
    assert "rejected 3 (1 by validation, 2 by scoring)" in text
    assert "preset robust, α = 0.5, chosen by fraction (10 %)" in text


def test_with_ground_truth_the_figures_of_every_preset_are_on_the_page(plain: Page) -> None:
    summary, presets, comparison = plain.text("summary"), plain.text("presets"), compare(inputs(30))
    assert comparison is not None
    assert "guessing gives 50 %" in summary and f"AUROC {comparison.auroc['robust']:.3f}" in summary
    assert "Of the selected samples 100.0 % need far context; of all scored ones 33.3 % do." in summary
    shown = ("paper", "official", "robust chosen", "AUROC", *(f"{value:.3f}" for value in comparison.auroc.values()))
    assert all(each in presets for each in shown)


@pytest.mark.parametrize("truth", [[], ["no such source"], ["no_context", "near", "far"]])
def test_without_a_ground_truth_that_tells_samples_apart_the_page_says_so(truth: list[str]) -> None:
    page = _page(config=configured(selection={"ground_truth": truth}))
    assert "No ground truth is configured that tells these samples apart" in page.text("summary")
    assert "AUROC" not in page.text("presets")
    assert "needs far context" not in page.text("samples")


def test_a_degenerate_preset_is_named_and_the_chosen_one_in_the_summary_too() -> None:
    page = _page(combined_scores=scores(30, equal=True))
    assert "The chosen preset has degenerated" in page.text("summary")
    assert "Preset robust has degenerated" in page.text("presets")
    assert "1 distinct scores in 30 samples" in page.text("presets")


@pytest.mark.parametrize(
    ("sections", "sentences"),
    [
        (
            {},
            [
                "Training, because the checkpoint has not been made yet.",
                "Held-out samples, because it has not run yet.",
                "Needle in a haystack, because it has not run yet.",
                "Rejected samples, because there are none.",
                "Effort of scoring, because all rows were kept, or nothing measured them.",
                "Methods side by side, because gateau alone ranked these samples: selection.compare names others.",
            ],
        ),
        (
            {"training": {"enabled": False}},
            ["Training, because training.enabled is false.", "Evaluation, because there is no checkpoint."],
        ),
        ({"evaluation": {"enabled": False}}, ["Evaluation, because evaluation.enabled is false."]),
        ({"evaluation": {"benchmarks": ["heldout"]}}, ["because needle is not in evaluation.benchmarks."]),
    ],
)
def test_what_is_missing_or_switched_off_is_one_line_at_the_end(sections: dict[str, Any], sentences: list[str]) -> None:
    absent = {"training_log": None, "evaluations": {}, "rejected": {}, "fingerprints": {}, "efforts": {}}
    page = _page(config=configured(**sections), **absent, methods=None)
    assert page.text("absent").startswith("Not in this report:")
    assert all(sentence in page.text("absent") for sentence in sentences)
    empty = {"methods", "rejected", "training", "evaluation", "effort"}
    assert not empty & {*page.text_of} and not {f"#{name}" for name in empty} & {
        attributes["href"] for attributes in page.attributes("a")
    }


def test_training_that_diverged_is_said() -> None:
    log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}]
    assert "1 logged loss is not finite" in _page(training_log=log).text("training")


@pytest.mark.parametrize("count", [1, 2, 5, 10, 30])
def test_top_and_bottom_samples_are_the_first_and_last_ranks(count: int) -> None:
    page = _page(count)
    ranks = [rank for rank in range(1, count + 1) if rank <= 10 or rank > count - 10]
    assert re.findall(r"#(\d+)", page.text("samples")) == [str(rank) for rank in ranks]
    cards = sample_cards(inputs(count))
    assert (len(cards.top), len(cards.bottom)) == (min(10, (count + 1) // 2), min(10, count // 2))
    assert not NOT_A_NUMBER.search(page.text("summary") + page.text("presets") + page.text("selected"))


@pytest.mark.parametrize("kind", [{"equal": True}, {"segments": 1}])
def test_equal_scores_and_null_terms_leave_no_broken_number(kind: dict[str, Any]) -> None:
    page = _page(combined_scores=scores(30, **kind))
    for section in ("summary", "scores", "presets", "samples", "selected"):
        assert not NOT_A_NUMBER.search(page.text(section).replace("null with fewer", "")), section


def test_equal_inputs_give_the_same_page() -> None:
    pages = set[str]()
    for _ in range(2):
        given = inputs()
        comparison = compare(given)
        drawn = drawings(given, comparison)
        some = {name: drawn[name] for name in ("terms", "agreement")}  # those that may draw by lot
        pages.add(build_report(given, comparison, some))
    assert len(pages) == 1


@pytest.mark.long
def test_a_large_run_stays_a_small_page() -> None:
    count = MARKS * 2
    short = raw(count).with_columns(context=pl.col("context").str.slice(0, 50))
    html = html_of(inputs(count, raw=short.lazy()))
    assert len(html.encode()) < 2_000_000


def test_source_table_sums_up_what_does_not_fit() -> None:
    frame = pl.DataFrame({"source": [f"source {i:02d}" for i in range(25)] * 2, "far": False}).with_columns(
        selected=pl.Series([True] * 3 + [False] * (47))
    )
    lines = source_table(frame)
    assert [line["source"] for line in lines[:3]] == ["source 00", "source 01", "source 02"]
    assert lines[0]["share"] == 0.5
    assert lines[-1]["source"] == "5 other sources"
    assert (sum(line["scored"] for line in lines), sum(line["selected"] for line in lines)) == (50, 3)


def test_every_colour_that_is_used_is_defined(plain: Page) -> None:
    used, defined = ({*re.findall(form, plain.styles)} for form in (r"var\((--[\w-]+)", r"(--[\w-]+):"))
    assert "--far" in used and used <= defined


def _table(*rows: tuple[str, str | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"sample_id": pl.String, "reason": pl.String}, orient="row")


def test_reasons_that_differ_in_numbers_and_names_are_one_kind() -> None:
    table = _table(("b", "line 17: role 'bot' is unknown"), ("a", "line 3: role 'x' is unknown"), ("c", "empty"))
    first, second = reject_groups({"raw_long_sft": table})
    assert (first.asset, first.count, first.examples) == ("raw_long_sft", 2, ["a", "b"])
    assert first.reason == "line 3: role 'x' is unknown"
    assert (second.reason, second.count) == ("empty", 1)


def test_assets_stay_apart_and_in_order() -> None:
    groups = reject_groups({"cam": _table(("a", "x")), "empty": _table(), "perplexity/long": _table(("a", "x"))})
    assert [group.asset for group in groups] == ["cam", "perplexity/long"]
    groups = reject_groups({"cam": _table(("a", None), ("b", "y" * 5000))})
    assert [len(group.reason) for group in groups] == [len("no reason given"), 302]


def test_no_sample_is_lost_among_many_kinds() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    table = _table(*((f"{name}{i}", f"reason {name}") for name in names for i in range(1 + (name == "q"))))
    groups = reject_groups({"cam": table}, most=5)
    assert [group.count for group in groups] == [2, 1, 1, 1, 1, 21]
    assert groups[0].reason == "reason q"
    assert groups[-1].reason == "21 other kinds of reason"
    assert sum(group.count for group in groups) == table.height


def test_what_is_lost_stands_among_the_rejects_and_much_of_it_on_top(plain: Page) -> None:
    much = DataLoss(asset="raw_long_sft", sentence="53 of 56 records rejected", notable=True)
    little = DataLoss(asset="perplexity/long", sentence="1 of 9 samples cut", notable=False)
    window = DataLoss(asset="perplexity/short", sentence="9 of 9 shortened", notable=False, intended=True)
    page = page_of(inputs(5, losses=[much, little, window]))
    assert window.sentence not in page.text("summary") + page.text("rejected")
    assert much.sentence in page.text("summary") and little.sentence not in page.text("summary")
    assert f"{much.asset}: {much.sentence}" in page.text("rejected")
    assert f"{little.asset}: {little.sentence}" in page.text("rejected")
    assert "lost on the way" not in plain.text()


def test_shares_in_a_benchmark_s_table_are_percentages(plain: Page) -> None:
    assert "base1,024100 %225 %0.7000" in plain.text("evaluation")


def test_a_card_holds_the_sample_s_own_texts_and_scores() -> None:
    given = inputs(30)
    texts = {row["sample_id"]: row for row in raw(30).iter_rows(named=True)}
    assert given.combined_scores is not None
    rows = {row["sample_id"]: row for row in given.combined_scores.iter_rows(named=True)}
    cards = sample_cards(given)
    for card in cards.top + cards.bottom:
        text, row = texts[card.sample_id], rows[card.sample_id]
        assert text["context"].startswith(card.context.start)
        assert text["context"].endswith(card.context.end)
        assert card.context.left_out == len(text["context"]) - 1400
        assert (card.instruction.start, card.response.start) == (text["instruction"], text["response"])
        assert card.score == row["score"]
        assert dict(card.ranks) == {preset: row[f"rank_{preset}"] for preset in ("paper", "official", "robust")}
        assert card.terms is not None and card.terms.score == row["score"]
        assert (card.terms.first.name, card.terms.first.value) == ("long-model gain", row["hmp"])
        assert (card.terms.second.name, card.terms.second.value) == ("far-segment gain", row["cas"])
        assert card.far == (text["source"] == "far")
        assert card.selected == (row["rank"] <= 3)


def test_the_part_of_a_context_that_no_model_saw_is_struck_out(plain: Page) -> None:
    unseen = pl.DataFrame({"sample_id": ["s000000", "s000002"], "unseen": [0.99, 0.1]})
    given = inputs(5, unseen=unseen)
    found = sample_cards(given)
    cards = {card.sample_id: card.context for card in found.top + found.bottom}
    text = {row["sample_id"]: row["context"] for row in raw(5).iter_rows(named=True)}
    nearly_all, little = cards["s000000"], cards["s000002"]
    assert nearly_all.unseen == round(0.99 * len(text["s000000"]))
    assert (nearly_all.unseen_start, nearly_all.start) == (text["s000000"][:700], "")
    assert text["s000000"].endswith(nearly_all.unseen_end + nearly_all.end) and nearly_all.end.endswith("end 0")
    assert text["s000002"].startswith(little.unseen_start + little.start) and little.start and not little.unseen_end
    assert not any(card.unseen for name, card in cards.items() if name not in {"s000000", "s000002"})
    page = page_of(given)
    assert len(page.attributes("del")) == 3, "two ends, and one"
    assert page.text("samples").count("No model saw about the first") == 2
    assert "No model saw" not in plain.text()


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
        "config": configured(selection={"ground_truth": ["far"], "method": method}),
        "method_scores": own,
        "lengths": tokens if lengths else None,
        "combined_scores": None,
        "selected_subset": chosen,
        "efforts": {},
    }
    return replace(inputs(count), **(given | changes))


def test_the_page_is_whole_without_the_presets() -> None:
    page = page_of(by())
    sections = ("summary", "scores", "samples", "selected", "rejected", "training", "evaluation", "equations",
                "provenance")  # fmt: skip
    links = [attributes["href"] for attributes in page.attributes("a")]
    assert links == [*(f"#{name}" for name in sections), "explore.html", "explore.html"]
    assert all(page.text(name) for name in sections)
    everything = " ".join(page.text(name) for name in sections if name not in {"provenance", "methods", "equations"})
    for word in ("preset", "HMP", "CAS", "gain", "Eq. 6", "combined_scores", "θ", "α"):
        assert word not in everything, word
    assert "3 of 26 samples selected" in page.text("summary") and "No model scored them." in page.text("summary")
    assert "Ranked by method length." in page.text("samples")
    assert "Effort of scoring, because no model scored these samples." in page.text("absent")
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
    assert [name for name, _ in sample_cards(given).top[0].facts] == [
        *("perplexity, long model", "context tokens", "response tokens")
    ]
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
    text = page_of(given).text("summary")
    assert f"method length puts the right one first in {100 * wanted:.1f} % (AUROC {wanted:.3f}" in text


def test_without_a_ground_truth_the_page_says_so() -> None:
    given = by(config=configured(selection={"method": "length"}))
    assert truth(given, None) is None
    assert "No ground truth is configured" in page_of(given).text("summary")


def test_a_compared_gateau_brings_its_presets_back_and_not_its_ranking() -> None:
    chosen = configured(selection={"ground_truth": ["far"], "method": "length", "compare": ["gateau"]})
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
    page = page_of(by(methods=replace(found, everything=unknown)))
    assert "Agreement by context length, because no method of this run reads perplexity/long" in page.text("absent")
    text = page.text("methods")
    assert "Does the length of the context" not in text
    several = methods(names=("length", "random"), bounds=(4000, 8000))
    assert "Does the length of the context" in page_of(by(methods=several)).text("methods")


def test_training_facts() -> None:
    facts = training_facts(training_log(8))
    assert (facts.steps, facts.first_loss, facts.last_loss) == (8, 2.0, 0.25)
    assert (facts.largest_grad_norm, facts.tokens_per_second, facts.not_finite) == (8.0, 1004.5, 0)

    facts = training_facts([{"step": 3, "loss": math.inf}, {"step": 4}])
    assert (facts.steps, facts.first_loss, facts.tokens_per_second, facts.not_finite) == (4, None, None, 1)


def test_benchmarks_that_were_not_run_or_measured_nothing_have_no_section() -> None:
    tables = inputs().evaluations
    shown = {each.name: each.section for each in benchmark_outcomes(inputs())}
    assert list(shown) == list(tables) and all(shown.values())
    for measured in ({}, {name: table.clear() for name, table in tables.items()}):
        assert not any(each.section for each in benchmark_outcomes(inputs(evaluations=measured)))


def test_a_benchmark_that_the_configuration_leaves_out_is_still_spoken_of() -> None:
    first, *others = inputs().evaluations
    given = inputs(config=configured(evaluation={"benchmarks": [first]}))
    asked = {each.name: each.asked for each in benchmark_outcomes(given)}
    assert asked == {first: True, **dict.fromkeys(others, False)}


def test_what_the_experiment_alone_shows_was_run_and_is_not_told_of_here() -> None:
    with with_quiz():
        shown = {"benchmarks": ["heldout", "quiz"]}
        told = [each.name for each in benchmark_outcomes(inputs(config=configured(evaluation=shown)))]
        untrained = configured(evaluation=shown, training={"enabled": False})
        assert told == ["heldout", "needle"]
        assert "quiz" in [each.name for each in benchmark_outcomes(inputs(config=untrained))]


@given(st.text())
def test_printable_keeps_length_and_ordinary_text(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text.replace("\r\n", "\n"))
    assert printable(shown) == shown
    assert not set(shown) & set("\x00\x1b\r\u202e\u2066\ufeff")
    assert [a for a in text.replace("\r\n", "\n") if a.isalnum()] == [a for a in shown if a.isalnum()]


@given(st.text(alphabet="abc \n", max_size=60), st.integers(1, 20))
def test_snippet_accounts_for_every_character(text: str, each: int) -> None:
    part = snippet(text, each=each)
    assert len(part.start) + len(part.end) + part.left_out == len(text)
    assert text.startswith(part.start)
    assert text.endswith(part.end)
    assert max(len(part.start), len(part.end)) <= (2 * each if not part.left_out else each)


@given(st.text(alphabet="abc \n", max_size=60), st.integers(1, 20), st.integers(0, 60))
def test_what_no_model_saw_is_marked_from_the_left(text: str, each: int, unseen: int) -> None:
    unseen, plain = min(unseen, len(text)), snippet(text, each=each)
    part = snippet(text, each=each, unseen=unseen)
    assert (part.unseen_start + part.start, part.unseen_end + part.end) == (plain.start, plain.end)
    assert (part.left_out, part.unseen) == (plain.left_out, unseen)
    assert len(part.unseen_start) == min(unseen, len(plain.start))
    assert len(part.unseen_end) == max(0, unseen - (len(text) - len(plain.end)))


def test_a_name_may_break_after_its_underscores_and_is_escaped() -> None:
    assert breakable("a_<b>_c") == "a_<wbr>&lt;b&gt;_<wbr>c"
