"""Draw the plots of the report and of Dagster's metadata, as Figures that `to_svg` and `to_png` turn into bytes."""

from gateau_dagster.plotting import PNG_LIMIT, as_markdown_image, to_png, to_svg
from gateau_dagster.report.plots.agreement_plots import (
    agreement_by_length,
    auroc_bars,
    disputed_ranks,
    method_correlations,
    preset_agreement,
)
from gateau_dagster.report.plots.score_plots import (
    alpha_curves,
    context_lengths,
    method_profiles,
    method_scores,
    score_distributions,
    segment_length_curves,
    terms_scatter,
)
from gateau_dagster.report.plots.training_plots import mix_contents, planned_and_actual, training_curve

__all__ = [
    "PNG_LIMIT",
    "agreement_by_length",
    "alpha_curves",
    "as_markdown_image",
    "auroc_bars",
    "context_lengths",
    "disputed_ranks",
    "method_correlations",
    "method_profiles",
    "method_scores",
    "mix_contents",
    "planned_and_actual",
    "preset_agreement",
    "score_distributions",
    "segment_length_curves",
    "terms_scatter",
    "to_png",
    "to_svg",
    "training_curve",
]
