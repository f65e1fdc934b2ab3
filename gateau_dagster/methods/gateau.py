"""GATEAU, its two halves alone, and GATEAU without the normalisation of Eq. 2: all from `combined_scores`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.selection import Preset
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method, Reads, Tables, no_check, no_warnings
from gateau_dagster.methods.spans import Row, SpanMap, Spans, no_span_map
from gateau_dagster.methods.token_pairs import same_sight
from gateau_dagster.scoring.contextual_awareness import added_by_segment
from gateau_dagster.scoring.pair_tables import CAM, THETA_B
from gateau_dagster.selection.presets import PresetScores, where_known
from gateau_dagster.selection.statistics import softmax

if TYPE_CHECKING:
    from gateau_dagster.config import Config

SCORES = "combined_scores"


class GateauOptions(Section):
    """The normalisation of the two terms."""

    preset: Preset | None = Field(default=None, description="paper, official or robust; default: selection.preset.")


def preset_of(config: Config, options: GateauOptions) -> Preset:
    """Return the normalisation that the options choose."""
    return options.preset or config.selection.preset


def _check_ranking(config: Config, options: GateauOptions) -> None:
    """Check that gateau, if it is selection.method, ranks by selection.preset: the report shows the presets
    beside it."""
    chosen = config.selection.preset
    if config.selection.method == "gateau" and preset_of(config, options) != chosen:
        raise GateauError(
            f"selection.options.gateau.preset: {options.preset}, but selection.preset is {chosen}, and gateau chooses "
            f"by that: set selection.preset: {options.preset} and leave the option out (it is for a gateau that "
            "selection.compare names beside another selection.method)"
        )


def _column(kind: str) -> tuple[Callable[..., Reads], Callable[..., pl.DataFrame]]:
    """Return the functions that read and score one of the columns of a preset."""

    def reads(config: Config, options: GateauOptions) -> Reads:
        return {SCORES: ["sample_id", f"{kind}_{preset_of(config, options)}"]}

    def score(tables: Tables, config: Config, options: GateauOptions) -> pl.DataFrame:
        return tables[SCORES].select("sample_id", score=f"{kind}_{preset_of(config, options)}")

    return reads, score


def _span_map(config: Config, options: GateauOptions) -> SpanMap | None:
    """Return the span map of the presets that read CAS.

    FG is not a sum over segments; the map of the report's samples shows it.
    """
    if preset_of(config, options) == "robust":
        return None
    length = config.scoring.segment_length

    def spans(row: Row) -> Spans | None:
        if row["cas"] is None:
            return None
        added = added_by_segment(row["segment_perplexity"], row["segment_attention"])
        return Spans(of="context", tokens=0, first=0, length=length, added=added.tolist())

    adds = "CAS: where attention and importance meet"
    return SpanMap(table=CAM, model=THETA_B, adds=adds, spans=spans)


def _warnings(config: Config, options: GateauOptions, accepted: pl.DataFrame) -> list[str]:
    """Return a warning if theta_A sees as much as theta_B: the paper's own theta_A sees everything, ours must not."""
    return same_sight(config, options, accepted) if preset_of(config, options) == "robust" else []


def _reads_raw(config: Config, options: Section) -> Reads:
    del config, options
    return {SCORES: ["sample_id", "perplexity_short", "perplexity_long", "cas_paper"]}


def unnormalised(tables: Tables, config: Config, options: Section) -> pl.DataFrame:
    """Return α·softmax_D(PPL_A - PPL_B) + (1-α)·softmax_D(CAS): Eq. 6, with Eq. 2 without its softmaxes."""
    del options
    found = tables[SCORES].sort("sample_id")
    hmp = found["perplexity_short"].to_numpy() - found["perplexity_long"].to_numpy()
    cas = found["cas_paper"].fill_null(float("nan")).to_numpy()
    scores = PresetScores(hmp=hmp, cas=cas, hmp_term=softmax(hmp), cas_term=where_known(softmax, cas))
    return pl.DataFrame({"sample_id": found["sample_id"], "score": scores.score(config.selection.alphas["paper"])})


def _method(name: str, kind: str, title: str, source: str, check: Callable[[Config, Any], None] = no_check) -> Method:
    reads, score = _column(kind)
    return Method(
        name=name,
        title=title,
        source=source,
        per_sample=False,
        options=GateauOptions,
        reads=reads,
        score=score,
        check=check,
        warnings=no_warnings if kind == "cas" else _warnings,
        span_map=no_span_map if kind == "hmp" else _span_map,
    )


METHODS = (
    _method(
        "gateau",
        "score",
        "The long model finds the response much likelier than the short one does, and far segments matter for it.",
        "GATEAU, Eq. 6",
        check=_check_ranking,
    ),
    _method(
        "hmg",
        "hmp",
        "The long model finds the response much likelier than the short one does.",
        "GATEAU, Eq. 2 (without CAM)",
    ),
    _method(
        "cam",
        "cas",
        "Segments of the context matter for the response, as the preset measures it.",
        "GATEAU, Eq. 5 (without HMG)",
    ),
    Method(
        name="gateau_unnormalised",
        title="As gateau, but with the plain difference of the two perplexities.",
        source="GATEAU, Table 9 (w/o Norm in Eq. 2)",
        per_sample=False,
        reads=_reads_raw,
        score=unnormalised,
    ),
)
