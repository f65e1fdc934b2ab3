"""Compare the presets: whether they separate samples, agree, and find the samples that need far context."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gateau_dagster.config import PRESETS
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.selection.degeneration import Degeneration, check_all
from gateau_dagster.selection.statistics import auroc_by_source, precision_at, spearman

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class PresetFacts:
    """One preset on this data set. `auroc` and `precision` (among as many first samples as selected) need ground truth.

    Only samples that can be selected count as first ones: none is reserved for the held-out evaluation. A sample that
    the pair cannot score counts as one of the last, as for every method.
    """

    name: str
    chosen: bool
    check: Degeneration
    without_cas: int
    auroc: float | None
    precision: float | None


@dataclass(frozen=True, kw_only=True)
class PresetComparison:
    """All presets: their facts, and two matrices [P, P] over `names`.

    spearman: of the scores; NaN if one side is constant.
    overlap: share of common samples among the first `count`.
    far_share, far_selected: shares of samples that need far context, among all scored and among the selected ones.
    """

    names: tuple[str, ...]
    presets: list[PresetFacts]
    spearman: Matrix
    overlap: Matrix
    count: int
    far_share: float | None
    far_selected: float | None

    @property
    def auroc(self) -> dict[str, float]:
        """Return the AUROC by preset; empty without a ground truth."""
        return {facts.name: facts.auroc for facts in self.presets if facts.auroc is not None}


def compare(inputs: ReportInputs) -> PresetComparison | None:
    """Compare the presets over `combined_scores`, among as many first samples as were selected; None without it.

    No preset can select reserved samples, so they never count as first ones.
    """
    if inputs.combined_scores is None:
        return None
    scores, far = inputs.scores, inputs.far
    free = ~scores["sample_id"].is_in(list(inputs.reserved))
    count = min(max(1, inputs.selected_subset.height), int(free.sum()))
    known = inputs.config.selection.ground_truth
    sources = inputs.raw.lazy().select("sample_id", "source").collect()
    checks = check_all(inputs.combined_scores, alpha=inputs.config.selection.alpha)
    facts = []
    for check in checks:
        column = f"score_{check.preset}"
        first = None if far is None else (scores[column].filter(free).to_numpy(), far.filter(free).to_numpy())
        facts.append(
            PresetFacts(
                name=check.preset,
                chosen=check.preset == inputs.preset,
                check=check,
                without_cas=scores[f"cas_{check.preset}"].null_count(),
                auroc=None if far is None else auroc_by_source(sources, scores, column, known),
                precision=None if first is None else precision_at(*first, count),
            )
        )
    correlation, overlap = _matrices(inputs.combined_scores, free, count)
    return PresetComparison(
        names=PRESETS,
        presets=facts,
        spearman=correlation,
        overlap=overlap,
        count=count,
        far_share=None if far is None else float(far.to_numpy().mean()),
        far_selected=None if far is None else share(far.to_numpy(), scores["selected"].to_numpy()),
    )


def share(far: NDArray[np.bool_], selected: NDArray[np.bool_]) -> float:
    """Return the share of selected samples that need far context; NaN if none are selected."""
    return float(far[selected].mean()) if selected.any() else float("nan")


def _matrices(scores: pl.DataFrame, free: pl.Series, count: int) -> tuple[Matrix, Matrix]:
    size = len(PRESETS)
    correlation, overlap = np.empty((size, size)), np.empty((size, size))
    for row, column in np.ndindex(size, size):
        pair = (PRESETS[row], PRESETS[column])
        rho = spearman(*(scores[f"score_{preset}"].to_numpy() for preset in pair))
        correlation[row, column] = float("nan") if rho is None else rho
        ranks = (scores[f"rank_{preset}"].filter(free).rank("ordinal") for preset in pair)
        first, second = (each.to_numpy() <= count for each in ranks)
        overlap[row, column] = np.sum(first & second) / count
    return correlation, overlap
