"""Draw every figure of the report once, with its alternative text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.features.evaluation.benchmark import PageFigure, PageSection
from gateau_dagster.features.evaluation.registry import asset_of, compares, configured_benchmarks, scored_benchmarks
from gateau_dagster.features.evaluation.statistics.results import experiment_figures
from gateau_dagster.features.report.inputs import PresetComparison, ReportInputs
from gateau_dagster.plots import Drawing, agreement_plots, score_plots, training_plots
from gateau_dagster.plots.training_plots import curve
from gateau_dagster.readable import plural

_SAME = "holds the same"


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """The figures of a run; a figure that was never logged is None."""

    steps: int
    first_loss: float | None
    last_loss: float | None
    largest_grad_norm: float | None
    tokens_per_second: float | None
    not_finite: int


def training_facts(log: Sequence[Mapping[str, Any]]) -> TrainingFacts:
    """Return the figures of a training log; `not_finite` counts logged losses that are NaN or infinite."""
    losses = curve(log, "loss")[1]
    norms = curve(log, "grad_norm")[1]
    speeds = curve(log, "tokens_per_second")[1]
    bad = sum(1 for entry in log if entry.get("loss") is not None and not math.isfinite(float(entry["loss"])))
    return TrainingFacts(
        steps=int(max((entry["step"] for entry in log), default=0)),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        largest_grad_norm=max(norms, default=None),
        tokens_per_second=median(speeds) if speeds else None,
        not_finite=bad,
    )


@dataclass(frozen=True, kw_only=True)
class BenchmarkOutcome:
    """A benchmark for the page. `section`: None if it was not run. `asked`: whether it is to run."""

    name: str
    title: str
    asked: bool
    section: PageSection | None

    @property
    def figures(self) -> dict[str, PageFigure]:
        """Return the section's figures by names that are unique on the page."""
        figures = self.section.figures if self.section else ()
        return {f"{asset_of(self.name)}: {figure.name}": figure for figure in figures}


def benchmark_outcomes(inputs: ReportInputs) -> list[BenchmarkOutcome]:
    """Return every benchmark that runs by default or that the configuration names, in order. Those that only the
    experiment shows are left out.
    """
    found, scored = [], scored_benchmarks(inputs.config)
    for name, each in configured_benchmarks(inputs.config).items():
        if not compares(each) and name in scored:
            continue
        table, section = inputs.evaluations.get(name), None
        if compares(each) and table is not None and not table.is_empty():
            section = each.section(table)
        found.append(BenchmarkOutcome(name=name, title=each.title, asked=each.asked, section=section))
    return found


def method_drawings(methods: MethodComparison) -> dict[str, Drawing]:
    """Return plots by name; plots that compare methods are absent if there is only one."""
    count, reference, several = plural(len(methods.methods), "method"), methods.reference, len(methods.methods) > 1
    alt = f"Context length, response length, perplexity and sources of the best tenth of {count} beside all samples; "
    drawn = {
        "method_profiles": Drawing(score_plots.method_profiles(methods), f"{alt}the table of figures below it {_SAME}")
    }
    if len(methods.methods) > 2:  # two methods have one correlation, which the page gives as text
        alt = f"Matrix of the rank correlations of {count}; the table of all pairs below it {_SAME}"
        drawn["method_correlations"] = Drawing(agreement_plots.method_correlations(methods), alt)
    # With one length the page has said everything.
    if several and sum(1 for bucket in methods.buckets if bucket.samples) > 1:
        alt = (
            f"Rank correlation of each method with {reference}, by range of context length; the table below it {_SAME}"
        )
        drawn["method_lengths"] = Drawing(agreement_plots.agreement_by_length(methods, reference), alt)
    if methods.disputed:
        alt = f"Matrix of where {count} rank the most disputed samples; the samples' own lists hold the same"
        drawn["disputed"] = Drawing(agreement_plots.disputed_ranks(methods), alt)
    if methods.alpha is not None:
        alt = f"Agreement of each preset's ranking with this run's, over alpha from 0 to 1; the table below {_SAME}"
        drawn["alpha"] = Drawing(score_plots.alpha_curves(methods.alpha), alt)
    if methods.segment_length is not None and len(methods.segment_length.points) > 1:
        lengths = ", ".join(f"{point.value:g}" for point in methods.segment_length.points)
        alt = f"Agreement of the rankings at segments of {lengths} tokens with this run's; the table below {_SAME}"
        drawn["segment_length"] = Drawing(score_plots.segment_length_curves(methods.segment_length), alt)
    return drawn


def drawings(inputs: ReportInputs, comparison: PresetComparison | None) -> dict[str, Drawing]:
    """Return plots by name; plots of parts that were not run are absent. `comparison`: of the presets, if available."""
    ranked, unit = inputs.ranked, inputs.length_unit
    drawn = {} if comparison is None else _presets(inputs, comparison)
    if not inputs.by_gateau:
        figure = score_plots.method_scores(ranked, method=inputs.config.selection.method, far=inputs.far_ranked)
        drawn["score"] = Drawing(figure, "Histogram of the score")
    figure = score_plots.text_lengths(ranked, selected=ranked["selected"], unit=unit)
    drawn["lengths"] = Drawing(figure, "Lengths of contexts and of responses, of all and of selected samples")
    return drawn | _downstream(inputs)


def _presets(inputs: ReportInputs, comparison: PresetComparison) -> dict[str, Drawing]:
    """Draw the scores under GATEAU's presets."""
    scores, far = inputs.scores, inputs.far
    agreement = agreement_plots.preset_agreement(
        comparison.names,
        spearman=comparison.spearman,
        overlap=comparison.overlap,
        chosen=min(comparison.count, scores.height),
    )
    terms = score_plots.terms_scatter(scores, preset=inputs.preset, far=far)
    drawn = {
        "scores": Drawing(score_plots.score_distributions(scores, far=far), "Histograms of the score, by preset"),
        "terms": Drawing(terms, "Scatter plot of the two terms of the score"),
        "agreement": Drawing(agreement, "Matrices of rank correlation and of common samples between the presets"),
    }
    if comparison.auroc:
        drawn["auroc"] = Drawing(agreement_plots.auroc_bars(comparison.auroc), "AUROC by preset")
    return drawn


def _downstream(inputs: ReportInputs) -> dict[str, Drawing]:
    """Draw training, evaluation and the comparison of methods."""
    drawn: dict[str, Drawing] = {}
    if inputs.training_log:
        figure = training_plots.training_curve(inputs.training_log)
        drawn["training"] = Drawing(figure, "Loss and learning rate by step")
        figure = training_plots.training_speed(inputs.training_log)
        drawn["training_speed"] = Drawing(figure, "Tokens per second and memory by step")
    named = [each for outcome in benchmark_outcomes(inputs) for each in outcome.figures.items()]
    named += [(figure.name, figure) for section in inputs.further for figure in section.figures]
    drawn |= {name: Drawing(figure.draw(), figure.alt) for name, figure in named}
    if inputs.experiment is not None:
        drawn |= experiment_figures(inputs.experiment)
    if inputs.methods is not None:
        drawn |= method_drawings(inputs.methods)
    return drawn
