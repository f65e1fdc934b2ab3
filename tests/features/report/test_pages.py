"""The words of pages: after a change of wording, pytest --snapshot-update, then read the difference."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from markupsafe import Markup
from syrupy.assertion import SnapshotAssertion

from gateau_dagster.comparison.result import AttentionPoint, AttentionSweep, Point, SegmentLengthSweep
from gateau_dagster.comparison.sweeps import alpha_sweep
from gateau_dagster.data.rejects import RejectKind, Rejects
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.pipeline.losses import DataLoss, Totals, Truncation
from tests.features.report.builders import by_method, effort, inputs, methods, page_of, raw, scores
from tests.kit.project import configured


def _whole() -> ReportInputs:
    kinds = (RejectKind(kind="empty <response>", count=2, examples=()),)
    cut = Truncation(samples=9, cut=1, tokens=5000, cut_tokens=120, limit="")
    rejects = Rejects(given=9, count=2, kinds=kinds)
    total = Totals(asset="cam", rows=7, rejected=rejects, truncation=cut, tokens=4880, seconds=7200.0)
    losses = [
        DataLoss(asset="raw_long_sft", sentence="53 of 56 records rejected", notable=True),
        DataLoss(asset="perplexity/long", sentence="1 of 9 samples cut", notable=False),
        DataLoss(asset="perplexity/short", sentence="9 of 9 shortened", notable=False, intended=True),
    ]
    notes = [Markup("See <code>this</code>."), Markup("And that.")]
    efforts = {"cam": [effort(2.0), effort(3.0), {}], "perplexity/long": [{}]}
    log = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": math.nan}]
    return inputs(
        30, raw=raw(32), totals=[total], losses=losses, notes=notes, efforts=efforts, training_log=log
    )  # fmt: skip


def _without(**sections: dict) -> Callable[[], ReportInputs]:
    """A run of which nothing but scores is made, by a configuration."""
    absent = {"training_log": None, "evaluations": {}, "rejected": {}, "fingerprints": {}, "efforts": {}}
    return lambda: inputs(5, config=configured(**sections), **absent, methods=None)


def _preset(preset: str) -> ReportInputs:
    section = {"preset": preset, "ground_truth": ["far"], "alpha": 0.7}
    return inputs(12, combined_scores=scores(12, preset=preset), config=configured(selection=section))


def _swept() -> ReportInputs:
    points = tuple(Point(value=value, spearman=0.5, overlap=0.25, auroc=None) for value in (64, 128))
    attention = AttentionPoint(length=256, median_peak=1.75, spearman=None)
    compared = methods(names=("gateau", "ladm"), bounds=(4000, 8000), selected_by=None)
    changes = {
        "alpha": alpha_sweep(scores(30), preset="robust", alpha=0.8, chosen=3),
        "segment_length": SegmentLengthSweep(configured=128, samples=29, chosen=3, points=points, single=(0, 1)),
        "attention": AttentionSweep(configured=128, samples=30, points=(attention,)),
    }
    return inputs(30, methods=replace(compared, **changes))


def _missing_a_few() -> ReportInputs:
    compared = methods()
    facts = tuple(replace(one, scored=29) if one.name == "ladm" else one for one in compared.methods)
    return inputs(30, methods=replace(compared, methods=facts))


def _comparison_without_lengths() -> ReportInputs:
    compared = methods(names=("length", "random"))
    unknown = replace(compared.everything, context_tokens=None, response_tokens=None, perplexity=None)
    return by_method(methods=replace(compared, everything=unknown))


def _compared_gateau() -> ReportInputs:
    chosen = configured(selection={"ground_truth": ["far"], "method": "length", "compare": ["gateau"]})
    return by_method(config=chosen, combined_scores=scores(30), methods=methods(names=("length", "gateau")))


def _random() -> ReportInputs:
    scored = scores(6).select("sample_id", "score")
    config = configured(selection={"method": "random"})
    return replace(inputs(6), config=config, combined_scores=None, method_scores=scored)


PAGES: dict[str, tuple[Callable[[], ReportInputs], str]] = {
    "whole": (_whole, "summary totals presets selected rejected training evaluation effort"),
    "nothing made": (_without(), "absent"),
    "no training": (_without(training={"enabled": False}), "absent"),
    "no evaluation": (_without(evaluation={"enabled": False}), "absent"),
    "one benchmark": (_without(evaluation={"benchmarks": ["heldout"]}), "absent"),
    "no ground truth": (lambda: inputs(12, config=configured()), "summary presets"),
    "equal scores": (lambda: inputs(12, combined_scores=scores(12, equal=True)), "summary presets"),
    "paper": (lambda: _preset("paper"), "equations"),
    "official": (lambda: _preset("official"), "equations"),
    "robust": (lambda: _preset("robust"), "equations"),
    "by a method": (by_method, "summary scores selected training equations absent"),
    "by a method that reads theta_B": (lambda: by_method("perplexity", lengths=True), "summary selected"),
    "by random": (_random, "equations"),
    "compared without lengths": (_comparison_without_lengths, "methods absent"),
    "compared with gateau": (_compared_gateau, "summary"),
    "one method": (lambda: inputs(30, methods=methods(names=("gateau",))), "methods"),
    "four methods": (_missing_a_few, "methods"),
    "agreeing methods": (lambda: inputs(30, methods=replace(methods(ground_truth=[]), disputed=())), "methods"),
    "sweeps": (_swept, "methods"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_the_words_of_a_page(name: str, snapshot: SnapshotAssertion) -> None:
    build, sections = PAGES[name]
    page = page_of(build(), "method_profiles", "disputed")
    links = [str(attributes["href"]) for attributes in page.attributes("a")]
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= {*page.text_of}
    texts = {section: _lines(page.text(section)) for section in sections.split()}
    assert {"links": " ".join(links)} | texts == snapshot


def _lines(text: str) -> list[str]:
    """Sentences on lines, without the long contexts of samples."""
    return re.split(r"(?<=[.:?]) ", re.sub(r"(word ){2,}", "… ", text.strip()))
