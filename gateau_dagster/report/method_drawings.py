"""The pictures of the section on methods."""

from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.report import plots
from gateau_dagster.report.drawing import Drawing
from gateau_dagster.report.methods import reference_of
from gateau_dagster.report.text import plural


def method_drawings(methods: MethodComparison) -> dict[str, Drawing]:
    """Plots by name; what compares methods is absent with one."""
    count, reference = plural(len(methods.methods), "method"), reference_of(methods)
    drawn = {
        "method_profiles": Drawing(
            figure=plots.method_profiles(methods),
            alt=f"Context length, response length, perplexity and sources of the best tenth of {count} beside all "
            "samples; the table of figures below it holds the same",
        )
    }
    if len(methods.methods) > 2:  # of two there is one correlation, which the page says
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
