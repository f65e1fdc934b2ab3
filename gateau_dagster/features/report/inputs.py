"""Collect all inputs of the report in one record, and compare the presets by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from numpy.typing import NDArray

from gateau_dagster.comparison.result import MethodComparison
from gateau_dagster.config import PRESETS, Config, Preset
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.maps import EvidenceMaps
from gateau_dagster.features.evaluation.statistics.forecast_outcomes import ForecastOutcome
from gateau_dagster.features.evaluation.statistics.results import ExperimentInputs
from gateau_dagster.features.report.further import FurtherSection
from gateau_dagster.pipeline.choice import ResponseShare
from gateau_dagster.pipeline.losses import UNSEEN, DataLoss, Totals
from gateau_dagster.selection.combine import ranked_by_score
from gateau_dagster.selection.evidence import far_share
from gateau_dagster.selection.forecast import Forecast
from gateau_dagster.selection.presets import Degeneration, check_all, with_terms
from gateau_dagster.selection.statistics import auroc_by_source, precision_at, spearman


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """The tables and notes of a run. Parts that were not made are None, and the page reports that."""

    config: Config
    raw: pl.LazyFrame | pl.DataFrame
    """RAW_LONG_SFT over all shards. Prefer a lazy frame: only two columns, and the texts of 20 samples, are read."""
    combined_scores: pl.DataFrame | None = None
    """The table of `selection.combine.COLUMNS`.

    Needed if GATEAU decides the selection; without it the page leaves out the presets.
    """
    method_scores: pl.DataFrame | None = None
    """METHOD_SCORES of the method that decides the selection; needed if that is not GATEAU."""
    lengths: pl.DataFrame | None = None
    """`sample_id`, `context_tokens`, `response_tokens`, `perplexity` by theta_B, if GATEAU does not decide.

    Without it lengths are in bytes.
    """
    selected_subset: pl.DataFrame
    """SELECTED_SUBSET; only `sample_id` is read."""
    rule: str = ""
    """The rule that chose them; needed if the configured one is `auto`."""
    reserved: Sequence[str] = ()
    """Ids of the samples that cannot be selected: those of the held-out evaluation."""
    rejected: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """REJECTED tables by asset key."""
    losses: Sequence[DataLoss] = ()
    """Sentences on rejected samples and truncated tokens."""
    totals: Sequence[Totals] = ()
    """Rows, rejects, tokens and time of each table, in the order of the data's flow."""
    unseen: pl.DataFrame = field(default_factory=UNSEEN.to_frame)
    """UNSEEN: per sample that every model saw cut, the share of its context that none saw."""
    evidence: Callable[[Sequence[Sample]], EvidenceMaps] = lambda _: EvidenceMaps()
    """Makes the evidence maps of samples."""
    named: pl.DataFrame | None = None
    """NAMED (selection.evidence): for each row of `cam`, the segments that its map names."""
    dependencies: pl.DataFrame | None = None
    """`sample_id` and `dependency` of the table `evidence`."""
    trust: Sequence[tuple[str, str]] = ()
    """The trust panel, a label and a sentence per line, from explanation.trust."""
    responses: ResponseShare | None = None
    """The response tokens that the chosen samples hold; None without theta_B's counts."""
    forecast: Forecast | None = None
    """The forecast of the choice, before any training; None without `cam` and theta_B's perplexities."""
    forecast_warnings: Sequence[str] = ()
    """Sentences from selection.forecast.choice_warnings."""
    notes: Sequence[Markup] = ()
    """Notes of features, shown below the forecast."""
    outcomes: Sequence[ForecastOutcome] = ()
    """Forecasts for the experiment's models beside what came of them."""
    training_log: Sequence[Mapping[str, Any]] | None = None
    """Entries with `step` and some of `loss`, `learning_rate`, `grad_norm`, `tokens_per_second`."""
    evaluations: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """The tables of the benchmarks by name."""
    experiment: ExperimentInputs | None = None
    """The compared models, under the benchmarks that give each question a value."""
    further: Sequence[FurtherSection] = ()
    """A judge's other ratings, and the questions that are in the data."""
    methods: MethodComparison | None = None
    """The comparison of methods, from comparison.compare."""
    efforts: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """`Stamp.effort` of the shards of each scored table, by asset key; from effort.efforts_by_asset."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Data version by asset key (or asset key and partition)."""
    generated_at: datetime
    command: str | None = None
    """The text that the user typed, if known."""

    @property
    def far_chosen(self) -> float | None:
        """Return the share of selected samples that depend on far text; None without `dependencies`."""
        if self.dependencies is None:
            return None
        return far_share(self.selected_subset.join(self.dependencies, on="sample_id")["dependency"])

    @property
    def by_gateau(self) -> bool:
        """Return whether GATEAU's ranking decided the selection, and not another method's."""
        return self.config.selection.method == "gateau"

    @property
    def preset(self) -> Preset:
        """Return GATEAU's preset: it decides the selection unless another method does."""
        return self.config.selection.preset

    @cached_property
    def scores(self) -> pl.DataFrame:
        """Return `combined_scores` with the preset's terms (presets.with_terms), `source`, and booleans `far` and
        `selected`.

        far: known to need far context.
        """
        assert self.combined_scores is not None
        sources = self.raw.lazy().select("sample_id", "source").collect()
        frame = with_terms(self.combined_scores.drop("source", strict=False), self.preset)
        return self._described(frame.join(sources, on="sample_id", how="left", maintain_order="left"))

    @cached_property
    def ranked(self) -> pl.DataFrame:
        """Return the samples with a score from the deciding method: `scores`, or those of another method.

        For another method the columns are `sample_id`, `source`, `score`, `rank`, `far`, `selected`, and
        `context_tokens`, `response_tokens`, `perplexity` or `context_bytes`, `response_bytes`; sorted by rank.
        """
        if self.by_gateau:
            return self.scores
        assert self.method_scores is not None
        found = self._samples.join(ranked_by_score(self.method_scores), on="sample_id")
        return self._described(found).sort("rank")

    @cached_property
    def _samples(self) -> pl.DataFrame:
        """Return every sample with its source and its lengths; the texts themselves are not kept."""
        parts = ("context", "response")
        sizes = [pl.col(part).str.len_bytes().cast(pl.Int64).alias(f"{part}_bytes") for part in parts]
        found = self.raw.lazy().select("sample_id", "source", *(sizes if self.lengths is None else [])).collect()
        return found if self.lengths is None else found.join(self.lengths, on="sample_id", how="left")

    @property
    def length_unit(self) -> str:
        """Return the unit of the lengths of `ranked`: its columns end in it."""
        return "tokens" if self.by_gateau or self.lengths is not None else "bytes"

    def _described(self, frame: pl.DataFrame) -> pl.DataFrame:
        chosen = self.selected_subset["sample_id"].to_list()
        return frame.with_columns(
            pl.col("source").fill_null("(unknown)"),
            pl.col("source").is_in(list(self.config.selection.ground_truth)).fill_null(False).alias("far"),
            pl.col("sample_id").is_in(chosen).alias("selected"),
        )

    @property
    def far(self) -> pl.Series | None:
        """Return the ground truth by row of `scores`; None if none is configured, or it does not separate them."""
        return self._known(self.scores["far"])

    @property
    def far_ranked(self) -> pl.Series | None:
        """Return the ground truth by row of `ranked`."""
        return self._known(self.ranked["far"])

    def _known(self, far: pl.Series) -> pl.Series | None:
        return far if self.config.selection.ground_truth and far.any() and not far.all() else None

    @cached_property
    def given(self) -> int:
        """Return the number of samples that passed validation: rows of `raw_long_sft`."""
        return int(self.raw.lazy().select(pl.len()).collect().item())


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
