"""The samples that the report shows in full: the first and the last of the ranking."""

from dataclasses import dataclass

import polars as pl

from gateau_dagster.config import PRESETS
from gateau_dagster.data.sample import Sample
from gateau_dagster.report.evidence_card import EvidenceCard, evidence_card
from gateau_dagster.report.formula import ScoreTerms, terms
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.text import Snippet, printable, snippet

SHOWN = 10
_FACTS = {
    "perplexity_short": "PPL θ_A",
    "perplexity_long": "PPL θ_B",
    "perplexity": "PPL θ_B",
    "hmp": "HMP",
    "cas": "CAS",
    "context_tokens": "context tokens",
    "response_tokens": "response tokens",
    "context_bytes": "context bytes",
    "response_bytes": "response bytes",
    "segments": "segments",
}


@dataclass(frozen=True, kw_only=True)
class SampleCard:
    """One sample with its scores and texts, of which a long one is shown by its ends.

    terms, ranks: of its score, and under GATEAU's presets, where these decide. evidence: what gave the response its
    tokens; without it `context` and `response` are shown instead.
    """

    sample_id: str
    source: str
    rank: int
    selected: bool
    far: bool
    score: float | None
    facts: list[tuple[str, float | int | None]]
    terms: ScoreTerms | None
    ranks: list[tuple[str, int | None]]
    context: Snippet
    instruction: Snippet
    response: Snippet
    evidence: EvidenceCard | None


@dataclass(frozen=True, kw_only=True)
class SampleCards:
    """`top` and `bottom` of the ranking; no_evidence: why there are no evidence maps, empty where nobody asked."""

    top: list[SampleCard]
    bottom: list[SampleCard]
    no_evidence: str


def sample_cards(inputs: ReportInputs) -> SampleCards:
    """The first and the last `SHOWN` samples by rank under the method that decides.

    No sample is in both (of few, the first half is top).
    """
    ordered = inputs.ranked.sort("rank")
    top = ordered.head(min(SHOWN, (ordered.height + 1) // 2))
    bottom = ordered.tail(min(SHOWN, ordered.height - top.height))
    samples = _samples(inputs, [*top["sample_id"], *bottom["sample_id"]])
    unseen = dict(inputs.unseen.filter(pl.col("sample_id").is_in([*samples])).select("sample_id", "unseen").iter_rows())
    found = inputs.evidence([*samples.values()])
    maps = {name: evidence_card(one, f"e{place}") for place, (name, one) in enumerate(found.maps.items(), start=1)}

    def cards(part: pl.DataFrame) -> list[SampleCard]:
        rows = [(row["sample_id"], row) for row in part.iter_rows(named=True)]
        return [_card(inputs, row, samples[name], unseen.get(name, 0.0), maps.get(name)) for name, row in rows]

    return SampleCards(top=cards(top), bottom=cards(bottom), no_evidence=found.missing)


def _samples(inputs: ReportInputs, wanted: list[str]) -> dict[str, Sample]:
    """The texts of these samples by id, in this order."""
    texts = inputs.raw.lazy().filter(pl.col("sample_id").is_in(wanted))
    columns = texts.select("sample_id", "source", "context", "instruction", "response").collect()
    found = {row["sample_id"]: Sample(**row) for row in columns.iter_rows(named=True)}
    return {name: found[name] for name in wanted}


def _card(inputs: ReportInputs, row: dict, sample: Sample, unseen: float, evidence: EvidenceCard | None) -> SampleCard:
    facts = [(name, row[column]) for column, name in _FACTS.items() if column in row]
    context = sample.context
    return SampleCard(
        sample_id=printable(row["sample_id"]),
        source=printable(row["source"]),
        rank=row["rank"],
        selected=row["selected"],
        far=row["far"],
        score=row["score"],
        facts=facts,
        terms=terms(row, inputs.config.selection) if inputs.by_gateau else None,
        ranks=[(preset, row[f"rank_{preset}"]) for preset in PRESETS if f"rank_{preset}" in row],
        # Tokens are taken to be alike in length, so the place of the cut is near the true one.
        context=snippet(context, unseen=round(unseen * len(context))),
        instruction=snippet(sample.instruction, each=500),
        response=snippet(sample.response, each=500),
        evidence=evidence,
    )
