"""Every picture of a report, drawn from its inputs."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from gateau_dagster.report import plots
from gateau_dagster.report.comparison import Comparison
from gateau_dagster.report.inputs import ReportInputs


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as a data URI, and what it shows for those who do not see it."""

    uri: str
    alt: str


def pictures(inputs: ReportInputs, comparison: Comparison) -> dict[str, Picture]:
    """Pictures by name; those whose part of the run was not made are absent."""
    scores = inputs.scores
    drawn = {
        "scores": _picture(plots.score_distributions(scores, far=inputs.far), "Histograms of the score, by preset"),
        "terms": _picture(
            plots.terms_scatter(scores, preset=inputs.preset, chosen=inputs.selected_subset.height, far=inputs.far),
            "Scatter plot of HMP against CAS",
        ),
        "agreement": _picture(
            plots.preset_agreement(
                comparison.names,
                spearman=comparison.spearman,
                overlap=comparison.overlap,
                chosen=min(comparison.count, scores.height),
            ),
            "Matrices of rank correlation and of common samples between the presets",
        ),
        "lengths": _picture(
            plots.context_lengths(scores, selected=scores["selected"]), "Context lengths of all and of selected samples"
        ),
    }
    if comparison.auroc:
        drawn["auroc"] = _picture(plots.auroc_bars(comparison.auroc), "AUROC by preset")
    if inputs.training_log:
        drawn["training"] = _picture(plots.training_curve(inputs.training_log), "Loss and learning rate by step")
    if inputs.heldout is not None and not inputs.heldout.is_empty():
        drawn["heldout"] = _picture(plots.heldout_bars(inputs.heldout), "Held-out perplexity by context length")
    if inputs.needle is not None and not inputs.needle.is_empty():
        drawn["needle"] = _picture(plots.needle_heatmaps(inputs.needle), "Share of facts found by length and depth")
    return drawn


def _picture(figure: Figure, alt: str) -> Picture:
    return Picture(uri=plots.as_data_uri(plots.to_svg(figure)), alt=alt)
