"""The samples that the report shows in full: the first and the last of the ranking."""

from dataclasses import dataclass

import polars as pl

from gateau_dagster.config import PRESETS
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.text import Snippet, printable, snippet

SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class SampleCard:
    """One sample with its scores and the ends of its texts."""

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
    """The first and the last `SHOWN` samples by `rank`; no sample is in both (of few, the first half is top)."""
    ordered = inputs.scores.sort("rank")
    top = ordered.head(min(SHOWN, (ordered.height + 1) // 2))
    bottom = ordered.tail(min(SHOWN, ordered.height - top.height))
    wanted = [*top["sample_id"], *bottom["sample_id"]]
    texts = inputs.raw.lazy().filter(pl.col("sample_id").is_in(wanted))
    columns = texts.select("sample_id", "context", "instruction", "response").collect()
    by_id = {row["sample_id"]: row for row in columns.iter_rows(named=True)}
    cards = [
        [_card(row, by_id.get(row["sample_id"], {})) for row in part.iter_rows(named=True)] for part in (top, bottom)
    ]
    return cards[0], cards[1]


def _card(row: dict, texts: dict) -> SampleCard:
    facts = [
        ("PPL θ_A", row["perplexity_short"]),
        ("PPL θ_B", row["perplexity_long"]),
        ("HMP", row["hmp"]),
        ("CAS", row["cas"]),
        ("context tokens", row.get("context_tokens")),
        ("response tokens", row.get("response_tokens")),
        ("segments", row.get("segments")),
    ]
    return SampleCard(
        sample_id=printable(row["sample_id"]),
        source=printable(row["source"]),
        rank=row["rank"],
        selected=row["selected"],
        far=row["far"],
        score=row["score"],
        facts=facts,
        ranks=[(preset, row.get(f"rank_{preset}")) for preset in PRESETS],
        context=snippet(texts.get("context") or ""),
        instruction=snippet(texts.get("instruction") or "", each=500),
        response=snippet(texts.get("response") or "", each=500),
    )
