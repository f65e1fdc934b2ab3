"""The page: what is on it, what is not, and that nothing in a sample can act on it."""

import math
import re
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from gateau_dagster.features.report.inputs import compare
from gateau_dagster.plots.score_plots import MARKS
from gateau_dagster.readable import printable
from tests.features.evaluation.quiz import with_quiz
from tests.features.report.builders import (
    NOT_A_NUMBER,
    WITHOUT,
    Page,
    by_method,
    html_of,
    inputs,
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
    (alike,) = reject_groups({"cam": _table(("a", "it takes 344 tokens"), ("b", "it takes 260 tokens"))})
    assert alike.reason == "it takes 260 to 344 tokens"
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


def test_samples_without_a_score_are_counted_and_never_shown() -> None:
    given = by_method()
    found = counts(given)
    assert (found.given, found.invalid, found.unscorable, found.scored, found.selected) == (31, 1, WITHOUT, 26, 3)
    cards = sample_cards(given)
    shown = {card.sample_id for card in cards.top + cards.bottom}
    assert not shown & {*raw(30)["sample_id"][-WITHOUT:]}
    assert sum(line["scored"] for line in source_table(given.ranked)) == 26


def test_cards_have_the_method_s_own_score_and_rank() -> None:
    given = by_method()
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


def test_how_often_the_method_is_right_by_counting_pairs() -> None:
    given = by_method()
    assert given.method_scores is not None
    found = given.method_scores.join(raw(30).select("sample_id", "source"), on="sample_id")
    rows = [(-1.0 if score is None else score, source == "far") for _, score, source in found.iter_rows()]
    pairs = [(one, two) for one, far in rows if far for two, other in rows if not other]
    wanted = sum(1.0 if one > two else 0.5 if one == two else 0.0 for one, two in pairs) / len(pairs)
    measured = truth(given, None)
    assert measured is not None and measured.auroc == pytest.approx(wanted, abs=1e-12)
    assert truth(by_method(config=configured(selection={"method": "length"})), None) is None, "no ground truth"


def test_the_pictures_are_those_of_the_method() -> None:
    given = by_method(training_log=None, evaluations={})
    assert set(drawings(given, compare(given))) == {"score", "lengths"}
    axes = drawings(given, None)["lengths"].figure.axes[0]
    assert axes.get_xlabel() == "context (bytes, logarithmic)"
    bars = drawings(given, None)["score"].figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == 26  # type: ignore[attr-defined]


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
