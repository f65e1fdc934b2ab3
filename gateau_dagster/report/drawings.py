"""Draw every figure of the report once, with its alternative text."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.readable import plural
from gateau_dagster.report import plots
from gateau_dagster.report.comparison import PresetComparison
from gateau_dagster.report.effort import table_efforts
from gateau_dagster.report.experiment_section import experiment_figures
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.methods import reference_of
from gateau_dagster.report.outcome import benchmark_outcomes


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot and its alternative text."""

    figure: Figure
    alt: str


def method_drawings(methods: MethodComparison) -> dict[str, Drawing]:
    """Return plots by name; plots that compare methods are absent if there is only one."""
    count, reference = plural(len(methods.methods), "method"), reference_of(methods)
    drawn = {
        "method_profiles": Drawing(
            figure=plots.method_profiles(methods),
            alt=f"Context length, response length, perplexity and sources of the best tenth of {count} beside all "
            "samples; the table of figures below it holds the same",
        )
    }
    if len(methods.methods) > 2:  # two methods have one correlation, which the page gives as text
        drawn["method_correlations"] = Drawing(
            figure=plots.method_correlations(methods),
            alt=f"Matrix of the rank correlations of {count}; the table of all pairs below it holds the same",
        )
    if len(methods.methods) > 1:
        drawn["method_lengths"] = Drawing(
            figure=plots.agreement_by_length(methods, reference),
            alt=f"Rank correlation of each method with {reference}, by range of context length; the table below it "
            "holds the same",
        )
    if methods.disputed:
        drawn["disputed"] = Drawing(
            figure=plots.disputed_ranks(methods),
            alt=f"Matrix of where {count} rank the most disputed samples; the samples' own lists hold the same",
        )
    if methods.alpha is not None:
        drawn["alpha"] = Drawing(
            figure=plots.alpha_curves(methods.alpha),
            alt="Agreement of each preset's ranking with this run's, over alpha from 0 to 1; the table below holds the "
            "same",
        )
    if methods.segment_length is not None and len(methods.segment_length.points) > 1:
        lengths = ", ".join(f"{point.value:g}" for point in methods.segment_length.points)
        drawn["segment_length"] = Drawing(
            figure=plots.segment_length_curves(methods.segment_length),
            alt=f"Agreement of the rankings at segments of {lengths} tokens with this run's; the table below holds the "
            "same",
        )
    return drawn


def drawings(inputs: ReportInputs, comparison: PresetComparison | None) -> dict[str, Drawing]:
    """Return plots by name; plots of parts that were not run are absent. `comparison`: of the presets, if available."""
    ranked, unit = inputs.ranked, inputs.length_unit
    drawn = {} if comparison is None else _presets(inputs, comparison)
    if not inputs.by_gateau:
        figure = plots.method_scores(ranked, method=inputs.config.selection.method, far=inputs.far_ranked)
        drawn["score"] = Drawing(figure=figure, alt="Histogram of the score")
    drawn["lengths"] = Drawing(
        figure=plots.context_lengths(ranked, selected=ranked["selected"], unit=unit),
        alt="Context lengths of all and of selected samples",
    )
    return drawn | _downstream(inputs)


def _presets(inputs: ReportInputs, comparison: PresetComparison) -> dict[str, Drawing]:
    """Draw the scores under GATEAU's presets."""
    scores = inputs.scores
    drawn = {
        "scores": Drawing(
            figure=plots.score_distributions(scores, far=inputs.far), alt="Histograms of the score, by preset"
        ),
        "terms": Drawing(
            figure=plots.terms_scatter(scores, preset=inputs.preset, far=inputs.far),
            alt="Scatter plot of HMP against CAS",
        ),
        "agreement": Drawing(
            figure=plots.preset_agreement(
                comparison.names,
                spearman=comparison.spearman,
                overlap=comparison.overlap,
                chosen=min(comparison.count, scores.height),
            ),
            alt="Matrices of rank correlation and of common samples between the presets",
        ),
    }
    if comparison.auroc:
        drawn["auroc"] = Drawing(figure=plots.auroc_bars(comparison.auroc), alt="AUROC by preset")
    return drawn


def _downstream(inputs: ReportInputs) -> dict[str, Drawing]:
    """Draw training, evaluation, the comparison of methods, and effort."""
    drawn: dict[str, Drawing] = {}
    if inputs.training_log:
        drawn["training"] = Drawing(
            figure=plots.training_curve(inputs.training_log), alt="Loss and learning rate by step"
        )
    for outcome in benchmark_outcomes(inputs):
        for name, figure in outcome.figures.items():
            drawn[name] = Drawing(figure=figure.draw(), alt=figure.alt)
    for section in inputs.further:
        for figure in section.page.figures:
            drawn[figure.name] = Drawing(figure=figure.draw(), alt=figure.alt)
    if inputs.experiment is not None:
        for name, (figure, alt) in experiment_figures(inputs.experiment).items():
            drawn[name] = Drawing(figure=figure, alt=alt)
    if inputs.methods is not None:
        drawn |= method_drawings(inputs.methods)
    measured = [table for table in table_efforts(inputs.efforts) if table.compared]
    if measured:
        drawn["effort"] = Drawing(
            figure=plots.planned_and_actual(measured), alt="Planned and actual time of scoring, by table"
        )
    return drawn
