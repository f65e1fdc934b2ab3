"""The samples that the report shows in full: the first and the last of the ranking."""

from dataclasses import dataclass

import polars as pl

from gateau_dagster.config import PRESETS
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
    """One sample with its scores and the ends of its texts. `ranks`: under GATEAU's presets, where these decide."""

    sample_id: str
    source: str
    rank: int
    selected: bool
    far: bool
    score: float | None
    facts: list[tuple[str, float | int | None]]
    ranks: list[tuple[str, int | None]]
    context: Snippet
    instruction: Snippet
    response: Snippet


def sample_cards(inputs: ReportInputs) -> tuple[list[SampleCard], list[SampleCard]]:
    """The first and the last `SHOWN` samples by rank under the method that decides.

    No sample is in both (of few, the first half is top).
    """
    ordered = inputs.ranked.sort("rank")
    top = ordered.head(min(SHOWN, (ordered.height + 1) // 2))
    bottom = ordered.tail(min(SHOWN, ordered.height - top.height))
    wanted = [*top["sample_id"], *bottom["sample_id"]]
    texts = inputs.raw.lazy().filter(pl.col("sample_id").is_in(wanted))
    columns = texts.select("sample_id", "context", "instruction", "response").collect()
    by_id = {row["sample_id"]: row for row in columns.iter_rows(named=True)}
    unseen = dict(inputs.unseen.filter(pl.col("sample_id").is_in(wanted)).select("sample_id", "unseen").iter_rows())

    def cards(part: pl.DataFrame) -> list[SampleCard]:
        rows = [(row["sample_id"], row) for row in part.iter_rows(named=True)]
        return [_card(row, by_id.get(name, {}), unseen.get(name, 0.0)) for name, row in rows]

    return cards(top), cards(bottom)


def _card(row: dict, texts: dict, unseen: float) -> SampleCard:
    facts = [(name, row[column]) for column, name in _FACTS.items() if column in row]
    context = texts.get("context") or ""
    return SampleCard(
        sample_id=printable(row["sample_id"]),
        source=printable(row["source"]),
        rank=row["rank"],
        selected=row["selected"],
        far=row["far"],
        score=row["score"],
        facts=facts,
        ranks=[(preset, row[f"rank_{preset}"]) for preset in PRESETS if f"rank_{preset}" in row],
        # Tokens are taken to be alike in length, so the place of the cut is near the true one.
        context=snippet(context, unseen=round(unseen * len(context))),
        instruction=snippet(texts.get("instruction") or "", each=500),
        response=snippet(texts.get("response") or "", each=500),
    )
