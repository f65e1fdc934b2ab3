"""The page: what is on it, what is not, and that nothing in a sample can act on it."""

import math
import re
from typing import Any

import polars as pl
import pytest

from gateau_dagster.data.rejects import RejectKind, Rejects
from gateau_dagster.pipeline.losses import Totals, Truncation
from gateau_dagster.report.build import SOURCES, build_report, counts, source_table
from gateau_dagster.report.comparison import compare
from gateau_dagster.report.drawings import drawings
from gateau_dagster.report.plots.score_plots import MARKS

from .builders import config, html_of, inputs, methods, page_of, raw, scores
from .page import Page

SECTIONS = (
    "summary", "scores", "presets", "methods", "samples", "selected", "rejected", "training", "evaluation", "effort",
    "equations", "provenance",
)  # fmt: skip
_NOT_A_NUMBER = re.compile(r"(?<![a-z])(nan|inf|none|null)(?![a-z])", re.IGNORECASE)


def _page(count: int = 30, **changes: Any) -> Page:
    return page_of(inputs(count, **changes))


def test_every_section_is_there_and_the_navigation_leads_to_it() -> None:
    page = _page()
    links = [attributes["href"] for attributes in page.attributes("a")]
    assert links == [*(f"#{name}" for name in SECTIONS), "explore.html"]
    assert all(page.text(name) for name in SECTIONS)


def test_the_demo_says_how_to_see_the_same_of_real_text() -> None:
    assert "make demo MODEL=" in _page(config=config(demo={})).text("summary")
    assert "make demo MODEL=" not in _page().text_of["summary"]


def test_every_head_of_a_table_says_what_it_heads() -> None:
    page = _page(methods=methods(names=("gateau", "ladm", "length")))
    scopes = [attributes.get("scope") for attributes in page.attributes("th")]
    assert scopes and {*scopes} == {"col", "row"}


def test_the_data_stands_in_one_table_where_it_is_known() -> None:
    kinds = (RejectKind(kind="empty <response>", count=2, examples=()),)
    cut = Truncation(samples=9, cut=1, tokens=5000, cut_tokens=120, limit="")
    scored = Totals(asset="cam", rows=7, rejected=Rejects(given=9, count=2, kinds=kinds), truncation=cut, tokens=4880,
                    seconds=7200.0)  # fmt: skip
    page = _page(totals=[scored])
    for text in ("7", "2 x empty <response>", "5,000", "120", "4,880", "2.0 h"):
        assert text in page.text("totals")
    assert "#totals" in [attributes["href"] for attributes in page.attributes("a")]
    assert "totals" not in _page().text_of


def test_fingerprints_and_configuration_are_folded() -> None:
    given = inputs(6, fingerprints={f"asset {number}": str(number) * 64 for number in range(9)})
    html = build_report(given, compare(given), {})
    folded = re.findall(r"<details><summary>(.*?)</summary>(.*?)</details>", html, re.DOTALL)
    inside = {re.sub("<[^>]*>", "", head): body for head, body in folded}
    assert "asset 8" in inside["9 fingerprints"]
    assert "long_sft:" in inside["Configuration, with all defaults filled in"]


def test_nothing_is_loaded_from_outside_and_nothing_runs() -> None:
    page = Page(html_of(inputs(methods=methods(names=("gateau", "ladm", "length")))))
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form"}
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            value = None if (tag, name) == ("a", "href") else attributes.get(name)  # a link loads nothing
            assert value is None or value.startswith(("#", "data:image/svg+xml;base64,")), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page.styles
    assert "@import" not in page.styles
    policy = next(m["content"] for m in page.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_text_of_samples_is_shown_and_never_obeyed() -> None:
    evil = "</div></details><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>{{ 7 * 7 }}&lt;"
    changes = dict.fromkeys(("source", "context", "instruction", "response"), evil)
    reject = pl.DataFrame({"sample_id": [evil], "reason": [evil]})
    page = _page(raw=raw(30, **changes), rejected={"cam": reject}, fingerprints={evil: evil}, command=evil,
                 config=config(long_sft={"path": evil}))  # fmt: skip
    assert not page.attributes("script")
    assert all((image["src"] or "").startswith("data:") for image in page.attributes("img"))
    assert evil in page.text("samples")
    assert page.text("samples").count(evil) >= 4 * 20
    assert evil in page.text("rejected")
    assert evil in page.text("provenance")


def test_hidden_and_direction_changing_characters_are_made_visible() -> None:
    page = _page(raw=raw(30, response="a\u202eb\x00c\x1bd"))
    assert "a\ufffdb\ufffdc\ufffdd" in page.text("samples")


def test_the_summary_counts() -> None:
    shown = counts(inputs(30, raw=raw(32)))
    assert (shown.given, shown.invalid, shown.unscorable, shown.scored, shown.selected) == (33, 1, 2, 30, 3)
    text = _page(30, raw=raw(32)).text("summary")
    assert "3 of 30 samples selected" in text
    assert "33 long samples in" in text
    assert "rejected 3 (1 by validation, 2 by scoring)" in text
    assert "preset robust, α = 0.5, chosen by fraction (10 %)" in text


def test_with_ground_truth_the_figures_of_every_preset_are_on_the_page() -> None:
    page = _page()
    assert "guessing gives 50 %" in page.text("summary")
    comparison = compare(inputs(30))
    assert comparison is not None
    measured = comparison.auroc
    assert f"AUROC {measured['robust']:.3f}" in page.text("summary")
    assert all(f"{value:.3f}" in page.text("presets") for value in measured.values())
    assert "Of the selected samples 100.0 % need far context; of all scored ones 33.3 % do." in page.text("summary")
    assert all(name in page.text("presets") for name in ("paper", "official", "robust chosen", "AUROC"))


@pytest.mark.parametrize("truth", [[], ["no such source"], ["no_context", "near", "far"]])
def test_without_a_ground_truth_that_tells_samples_apart_the_page_says_so(truth: list[str]) -> None:
    page = _page(config=config(selection={"ground_truth": truth}))
    assert "No ground truth is configured that tells these samples apart" in page.text("summary")
    assert "AUROC" not in page.text("presets")
    assert "needs far context" not in page.text("samples")


def test_a_degenerate_preset_is_named_and_the_chosen_one_in_the_summary_too() -> None:
    page = _page(combined_scores=scores(30, equal=True))
    assert "The chosen preset has degenerated" in page.text("summary")
    assert "Preset robust has degenerated" in page.text("presets")
    assert "1 distinct scores in 30 samples" in page.text("presets")


def test_missing_parts_are_said_in_a_sentence() -> None:
    absent = {"training_log": None, "evaluations": {}, "rejected": {}, "fingerprints": {}}
    page = _page(**absent)
    assert "There is no training log for this run" in page.text("training")
    assert "The benchmark heldout was not run." in page.text("evaluation")
    assert "The benchmark needle was not run." in page.text("evaluation")
    assert "No sample was rejected." in page.text("rejected")
    assert "No fingerprints were given." in page.text("provenance")


@pytest.mark.parametrize(
    ("sections", "section", "sentence"),
    [
        ({"training": {"enabled": False}}, "training", "Training is switched off"),
        ({"training": {"enabled": False}}, "evaluation", "Without training there is no checkpoint"),
        ({"evaluation": {"enabled": False}}, "evaluation", "Evaluation is switched off"),
        ({"evaluation": {"benchmarks": ["heldout"]}}, "evaluation", "needle was not run: it is not in"),
    ],
)
def test_what_is_switched_off_is_said(sections: dict[str, Any], section: str, sentence: str) -> None:
    page = _page(config=config(**sections), training_log=None, evaluations={})
    assert sentence in page.text(section)


def test_training_that_diverged_is_said() -> None:
    log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}]
    assert "1 logged loss is not finite" in _page(training_log=log).text("training")


def test_top_and_bottom_samples_are_the_first_and_last_ranks() -> None:
    text = _page(30).text("samples")
    assert re.findall(r"#(\d+)", text) == [str(rank) for rank in (*range(1, 11), *range(21, 31))]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_few_samples(count: int) -> None:
    page = _page(count)
    assert re.findall(r"#(\d+)", page.text("samples")) == [str(rank) for rank in range(1, count + 1)]
    assert not _NOT_A_NUMBER.search(page.text("summary") + page.text("presets") + page.text("selected"))


@pytest.mark.parametrize("kind", [{"equal": True}, {"segments": 1}])
def test_equal_scores_and_null_terms_leave_no_broken_number(kind: dict[str, Any]) -> None:
    page = _page(combined_scores=scores(30, **kind))
    for section in ("summary", "scores", "presets", "samples", "selected"):
        visible = page.text(section).replace("null with fewer", "")
        assert not _NOT_A_NUMBER.search(visible), section


def test_equal_inputs_give_the_same_page() -> None:
    assert _some_figures() == _some_figures()


def _some_figures() -> str:
    """Those that draw by lot, or by the order of a set, if any do."""
    given = inputs()
    comparison = compare(given)
    drawn = drawings(given, comparison)
    return build_report(given, comparison, {name: drawn[name] for name in ("terms", "agreement")})


def test_a_large_run_stays_a_small_page() -> None:
    count = MARKS * 2
    short = raw(count).with_columns(context=pl.col("context").str.slice(0, 50))
    html = html_of(inputs(count, raw=short.lazy()))
    assert len(html.encode()) < 2_000_000


def test_source_table_sums_up_what_does_not_fit() -> None:
    frame = pl.DataFrame({"source": [f"source {i:02d}" for i in range(SOURCES + 5)] * 2, "far": False}).with_columns(
        selected=pl.Series([True] * 3 + [False] * (2 * SOURCES + 7))
    )
    lines = source_table(frame)
    assert [line["source"] for line in lines[:3]] == ["source 00", "source 01", "source 02"]
    assert lines[0]["share"] == 0.5
    assert lines[-1]["source"] == "5 other sources"
    assert (sum(line["scored"] for line in lines), sum(line["selected"] for line in lines)) == (2 * SOURCES + 10, 3)


def test_every_colour_that_is_used_is_defined() -> None:
    styles = page_of(inputs(9)).styles
    used, defined = ({*re.findall(form, styles)} for form in (r"var\((--[\w-]+)", r"(--[\w-]+):"))
    assert "--far" in used and used <= defined
