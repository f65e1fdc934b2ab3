"""How well the deciding method finds the samples that are known to need far context."""

from dataclasses import dataclass

from gateau_dagster.report.comparison import Comparison, auroc_sentence, share
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.selection.statistics import auroc_by_source


@dataclass(frozen=True, kw_only=True)
class Truth:
    """`auroc` of the ranking; shares of samples that need far context, of all scored and of the selected ones."""

    auroc: float
    far_share: float | None
    far_selected: float | None
    sentence: str


def truth(inputs: ReportInputs, comparison: Comparison | None) -> Truth | None:
    """Of GATEAU's preset or of the method; None without a ground truth that tells the scored samples apart.

    As in a comparison of methods, a sample that the method cannot score counts as one of its last.
    """
    if inputs.by_gateau:
        assert comparison is not None
        if not comparison.auroc:
            return None
        return Truth(
            auroc=comparison.auroc[inputs.preset],
            far_share=comparison.far_share,
            far_selected=comparison.far_selected,
            sentence=comparison.sentence(inputs.preset),
        )
    far = inputs.far_ranked
    if far is None:
        return None
    scored, selected = far.to_numpy(), inputs.ranked["selected"].to_numpy()
    far_share, far_selected = float(scored.mean()), share(scored, selected)
    value = _auroc(inputs)
    sentence = auroc_sentence(f"method {inputs.config.selection.method}", value, far_selected, far_share)
    return Truth(auroc=value, far_share=far_share, far_selected=far_selected, sentence=sentence)


def _auroc(inputs: ReportInputs) -> float:
    assert inputs.method_scores is not None
    sources = inputs.raw.lazy().select("sample_id", "source").collect()
    found = auroc_by_source(sources, inputs.method_scores, "score", inputs.config.selection.ground_truth)
    assert found is not None, "the scored samples alone are told apart"
    return found
