"""Declare the asset `control`."""

from collections.abc import Iterator

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.features.control.design import CODE_VERSION
from gateau_dagster.methods.registry import GATEAU
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.feature import Feature
from gateau_dagster.pipeline.selection_reads import has_evidence
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, perplexity_asset
from gateau_dagster.selection.combine import MEASURES

CONTROL = "control"
FAR, EXCHANGED = "far", "exchanged"
SCORED = (perplexity_asset(THETA_A), perplexity_asset(THETA_B), CAM)
"""The tables whose figures the exchanged samples get."""
_MEASURES = {
    "perplexity_short": "Perplexity by theta_A; as all figures, null for a sample that needs far text.",
    "perplexity_long": "Perplexity by theta_B.",
    "probability_short": "Mean probability of the response tokens under theta_A.",
    "probability_long": "Mean probability of the response tokens under theta_B.",
    "cas": "Contextual awareness score, Eq. 5.",
    "far_gain": "Far-segment gain.",
    "context_tokens": "Context tokens that theta_B saw.",
    "response_tokens": "Response tokens.",
    "segments": "Segments of the context.",
}
COLUMNS = (
    tables.column("sample_id", pl.String, "Id of the sample, as in `raw_long_sft`."),
    tables.column("role", pl.String, "far: worded as its far text only. exchanged: with the far text of others."),
    tables.column("digest", pl.String, "Digest of the texts, for exchanged ones with the other far text."),
    tables.column("scorer", pl.String, "Digest of the models and settings that made the figures."),
    *(tables.column(name, MEASURES[name], text, nullable=True) for name, text in _MEASURES.items()),
)


def has_control(config: Config) -> bool:
    """Return whether the control is made: it is configured, and GATEAU ranks, whose score it measures."""
    wanted = config.selection.evidence == CONTROL and config.selection.method == GATEAU
    return wanted and has_evidence(config) and config.has_pair


class ControlFeature(Feature):
    """Samples of which the truth is known, to measure the ranking on the user's own data."""

    def declare(self, config: Config) -> Iterator[Asset]:
        """Declare the table, with `selection.evidence: control`."""
        if not has_control(config):
            return
        yield Asset(
            key=CONTROL,
            maker="control",
            group="selection",
            kinds=("polars",),
            summary="samples known to need far text, and samples whose far text is exchanged",
            description="Samples drawn by a hash of their ids: those whose response is worded as in their far text "
            "only, and others with exchanged far text, scored by both models. The AUROC of the score over both "
            "measures the ranking without labels.",
            reads=dict.fromkeys(("raw_long_sft", *SCORED), "fingerprint"),
            code_version=CODE_VERSION,
            columns=COLUMNS,
            own_rejects=False,
            pool="gpu",
            goal=True,
        )


FEATURE = ControlFeature()
