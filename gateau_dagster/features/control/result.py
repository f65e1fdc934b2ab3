"""Measure the ranking by the control, and put the result into words."""

from dataclasses import dataclass

import polars as pl

from gateau_dagster.config import Preset
from gateau_dagster.features.control.feature import CONTROL, EXCHANGED, FAR, SCORED, has_control
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.combine import MEASURES, READ_COLUMNS, join_shard, ranked
from gateau_dagster.selection.statistics import auroc, auroc_interval

LEAST = 8
"""Samples of each kind below which no figure is given: the interval would span nearly everything."""


@dataclass(frozen=True, kw_only=True)
class ControlResult:
    """The control's AUROC with its 95 % interval; None if a kind has fewer than LEAST samples.

    far, exchanged: the numbers of samples of both kinds that have a score.
    """

    auroc: float | None
    low: float
    high: float
    far: int
    exchanged: int

    @property
    def sentence(self) -> str:
        """Return the result in words."""
        if self.auroc is None:
            return (
                f"Not measured: {self.far} of the drawn samples are worded as in their far text only, and "
                f"{self.exchanged} have exchanged far text. {LEAST} of each are needed."
            )
        return (
            f"AUROC {self.auroc:.2f} (95 %: {self.low:.2f} to {self.high:.2f}), without labels. It compares "
            f"{self.far} samples worded as in their far text only with {self.exchanged} whose far text was exchanged. "
            "Paraphrased responses are not in it."
        )


def control_result(state: State) -> ControlResult:
    """Return the AUROC of the configured score over the table `control`."""
    selection, table = state.config.selection, state.store.read(CONTROL, None)
    far, made = (table.filter(role=role) for role in (FAR, EXCHANGED))
    read = {asset: state.read(asset, READ_COLUMNS[asset]) for asset in SCORED}
    if selection.preset == "robust":  # the only preset whose score does not depend on other samples
        read = {asset: frame.join(far, on="sample_id", how="semi") for asset, frame in read.items()}
    return compared(join_shard(read).frame, far["sample_id"], made, preset=selection.preset, alpha=selection.alpha)


def compared(
    data: pl.DataFrame, far: pl.Series, exchanged: pl.DataFrame, *, preset: Preset, alpha: float | None
) -> ControlResult:
    """Return the AUROC of a score over samples that need far text and samples that need none.

    Args:
        data: MEASURES of the samples of the data.
        far: the ids of those that need far text.
        exchanged: MEASURES of samples with exchanged far text.
        preset, alpha: of the score.
    """
    # An exchanged sample has the id of its original, so it gets a name that no record has.
    made = exchanged.select(MEASURES.names()).with_columns(sample_id=pl.lit("\0") + pl.col("sample_id"))
    measures = pl.concat([data.select(MEASURES.names()), made]).sort("sample_id")
    scores = ranked(measures, preset=preset, alpha=alpha).select("sample_id", "score", "cas")
    # As in the ranking, a sample without the second term comes last.
    last = pl.when(pl.col("cas").is_null()).then(float("-inf")).otherwise("score")
    needing = scores.filter(pl.col("sample_id").is_in(far.implode())).select(last)["literal"]
    others = scores.filter(pl.col("sample_id").str.starts_with("\0")).select(last)["literal"]
    if min(needing.len(), others.len()) < LEAST:
        return ControlResult(auroc=None, low=0.0, high=1.0, far=needing.len(), exchanged=others.len())
    places = pl.concat([needing, others]).rank("average").to_numpy()
    value = auroc(places, [True] * needing.len() + [False] * others.len())
    low, high = auroc_interval(value, needing.len(), others.len())
    return ControlResult(auroc=value, low=low, high=high, far=needing.len(), exchanged=others.len())


def current_result(state: State) -> ControlResult | None:
    """Return the result of the stored control; None if none is configured, or none is made yet."""
    if not has_control(state.config) or state.stamp(CONTROL, None) is None:
        return None
    return control_result(state)
