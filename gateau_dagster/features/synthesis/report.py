"""Show synthetic samples in the report: the yield, and candidates with the places of their evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.execution.shard_tables import samples_of
from gateau_dagster.explanation.card import evidence_card, snippet
from gateau_dagster.explanation.maps import EvidenceMaps, SpanStrip, Stretch, evidence_maps
from gateau_dagster.features.evaluation.benchmark import PageTable
from gateau_dagster.features.report.further import CandidateCard, FurtherSection
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import CHECKS
from gateau_dagster.pipeline.losses import RAW
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import plural, printable

_OF_EACH = 10  # accepted and refused synthetic samples that are shown
_SHORT = 300  # characters of evidence that are shown


def sections(state: State) -> Iterator[FurtherSection]:
    """Yield the section, if the candidates are checked."""
    if CHECKS_TABLE in state.asset("report").reads:
        checked = state.read(CHECKS_TABLE).drop("probability")
        shown = shown_candidates(checked)
        yield synthesis_section(checked, _with_texts(state, shown), _maps(state, shown.filter("accepted")))


def _with_texts(state: State, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return synthetic candidates with their texts; only their rows are read."""
    wanted = chosen.select("sample_id")
    parts = [str(part) for part in state.pipeline.partitions(CHECKS_TABLE)]
    asked, built = (
        pl.concat([state.store.read_rows(asset, part, wanted) for part in parts], how="diagonal")
        for asset in (QUESTIONS_TABLE, CONTEXTS_TABLE)
    )
    texts = asked.select("sample_id", "question", "answer", "evidence")
    places = built.select("sample_id", "context", "positions")
    return chosen.join(texts, on="sample_id", how="left", maintain_order="left").join(
        places, on="sample_id", how="left", maintain_order="left"
    )


def _maps(state: State, accepted: pl.DataFrame) -> EvidenceMaps:
    """Return the evidence maps of accepted synthetic samples, if long_sft reads them."""
    if not state.config.made_inputs:
        return EvidenceMaps()
    parts = [state.store.read_rows(RAW, shard, accepted.select("sample_id")) for shard in state.shards]
    return evidence_maps(state, [*samples_of(pl.concat(parts, how="diagonal"))])


def shown_candidates(checked: pl.DataFrame) -> pl.DataFrame:
    """Return ten accepted and ten refused candidates of checks.CHECKED, of as many kinds and reasons as possible."""
    return pl.concat([_varied(checked.filter("accepted")), _varied(checked.filter(~pl.col("accepted")))])


def _varied(candidates: pl.DataFrame) -> pl.DataFrame:
    """Return ten candidates: each is the one whose kind and reason were taken least often before it."""
    few = candidates.sort("sample_id").group_by("kind", "reason", maintain_order=True).head(_OF_EACH)
    left = few.select("kind", "reason", "sample_id").sort("kind", "reason", "sample_id").rows()
    kinds, reasons = Counter[str](), Counter[str]()
    names: list[str] = []
    while left and len(names) < _OF_EACH:
        chosen = min(left, key=lambda each: (kinds[each[0]] + reasons[each[1]], reasons[each[1]], each))
        left.remove(chosen)
        kinds[chosen[0]] += 1
        reasons[chosen[1]] += 1
        names.append(chosen[2])
    order = pl.DataFrame({"sample_id": names}, schema={"sample_id": pl.String()})
    return order.join(candidates, on="sample_id", maintain_order="left").select(candidates.columns)


def synthesis_section(checked: pl.DataFrame, shown: pl.DataFrame, found: EvidenceMaps) -> FurtherSection:
    """Return the section on synthetic samples: the yield, and samples with the places of their evidence.

    Args:
        checked: checks.CHECKED of all candidates.
        shown: those of `shown_candidates` with `question`, `answer`, `evidence`, `context` and `positions` (null for a
            candidate without a context).
        found: the evidence maps of the accepted ones that long_sft reads.
    """
    accepted, total = int(checked["accepted"].sum()), checked.height
    sentences = [
        f"{accepted:,} of {plural(total, 'candidate')} are accepted. The checks come in the order of their cost. The "
        "first that fails is the reason.",
        "A card shows where the passages of the question are in the context: the truth. Below it are the gains of the "
        "passages under theta_B, if the checks came so far: how much likelier each makes the answer beside the others.",
        "Accepted samples that long_sft reads have an evidence map, if the segments of long samples are measured. "
        "Refused ones are never scored as samples, so they show what the checks measured alone.",
    ]
    yields = [
        PageTable(frame=_yield_by(checked, name), columns={name: name, **_YIELD}, shares=["share"])
        for name in ("kind", "length")
    ]
    refused = checked.filter(~pl.col("accepted"))
    reasons = refused["reason"].value_counts(name="candidates").with_columns(share=pl.col("candidates") / max(1, total))
    reasons = reasons.sort(["candidates", "reason"], descending=[True, False])
    columns = {"reason": "reason", "candidates": "refused", "share": "share of all"}
    cards = [_candidate(row, f"s{place}", found) for place, row in enumerate(shown.iter_rows(named=True), start=1)]
    of_each = {
        "accepted": [card for card in cards if not card.reason],
        "refused": [card for card in cards if card.reason],
    }
    return FurtherSection(
        anchor="synthesis",
        title="Synthetic samples",
        sentences=sentences,
        tables=[*yields, PageTable(frame=reasons, columns=columns, shares=["share"])],
        cards={f"{plural(len(each), 'sample')}, {name}": each for name, each in of_each.items() if each},
    )


_YIELD = {"candidates": "candidates", "accepted": "accepted", "share": "yield"}


def _yield_by(checked: pl.DataFrame, name: str) -> pl.DataFrame:
    found = checked.group_by(name).agg(candidates=pl.len(), accepted=pl.col("accepted").sum()).sort(name)
    return found.with_columns(pl.col(name).cast(pl.String), share=pl.col("accepted") / pl.col("candidates"))


def _candidate(row: Mapping[str, Any], key: str, found: EvidenceMaps) -> CandidateCard:
    sample = Sample(
        sample_id=row["sample_id"],
        source=row["kind"],
        context=row["context"] or "",
        instruction=row["question"],
        response=row["answer"],
    )
    places = [(each["start"], each["end"]) for each in row["positions"] or ()]
    one = found.maps.get(sample.sample_id)
    return CandidateCard(
        sample_id=sample.sample_id,
        kind=row["kind"],
        reason=row["reason"],
        detail=printable(row["detail"]),
        facts=[("length", row["length"]), *((name, row[name]) for name in CHECKS if row[name] is not None)],
        context=snippet(sample.context),
        instruction=snippet(sample.instruction, each=500),
        response=snippet(sample.response, each=500),
        places=_strip(sample, places, [1.0] * len(places)) if places else None,
        quotes=[printable(each[:_SHORT]) for each in row["evidence"] or ()],
        gains=None if row["passage_gains"] is None else _strip(sample, places, row["passage_gains"]),
        evidence=None if one is None else evidence_card(one, key),
        strips=found.strips.get(sample.sample_id, ()),
    )


def _strip(sample: Sample, places: Sequence[tuple[int, int]], added: Sequence[float]) -> SpanStrip:
    stretches = [Stretch(start=a, end=b, added=each) for (a, b), each in zip(places, added, strict=True)]
    return SpanStrip(
        methods=["theta_B"],
        adds="the probability of the answer",
        sample=sample,
        stretches=stretches,
        elsewhere=0.0,
    )
