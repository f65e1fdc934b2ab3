"""How often the evidence maps name far segments, by source, and how often the right ones where that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.demo.planted_facts import planted_values
from gateau_dagster.readable import percent, plural
from gateau_dagster.report.evidence import Evidence
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.text import printable

_SOURCES = 20  # lines of the table; the others are one line
_BATCH = 256  # maps at a time

RIGHT = pl.Schema({"sample_id": pl.String(), "planted": pl.Boolean(), "right": pl.Boolean()})


@dataclass(frozen=True, kw_only=True)
class NamedShare:
    """A source: its samples with a map, and for how many of them that names a far segment.

    right: for how many it names just the far segments that hold planted facts; None where no facts are known.
    """

    source: str
    samples: int
    named: int
    right: int | None

    @property
    def share(self) -> float:
        """Of the samples, those with a named segment."""
        return self.named / self.samples

    @property
    def right_share(self) -> float | None:
        """Of the samples, those with the right segments."""
        return None if self.right is None else self.right / self.samples


@dataclass(frozen=True, kw_only=True)
class EvidenceShares:
    """The table, and what it says where the truth is known."""

    sources: list[NamedShare]
    sentence: str


def evidence_shares(inputs: ReportInputs) -> EvidenceShares | None:
    """None where no segments were measured."""
    if inputs.named is None or inputs.named.is_empty():
        return None
    sources = inputs.raw.lazy().select("sample_id", "source").collect()
    table = inputs.named.with_columns(some=pl.col("named").list.len() > 0).join(sources, on="sample_id", how="left")
    known = right_segments(inputs) if inputs.config.demo is not None else RIGHT.to_frame()
    found = table.join(known, on="sample_id", how="left")
    lines = (
        found.group_by("source")
        .agg(pl.len().alias("samples"), pl.col("some").sum(), pl.col("right").sum(), known=pl.col("right").count())
        .sort(["samples", "source"], descending=[True, False])
    )
    rest = lines.slice(_SOURCES).select(pl.col("samples", "some", "right", "known").sum())
    shown = [_share(printable(row["source"][:200]), row) for row in lines.head(_SOURCES).iter_rows(named=True)]
    if lines.height > _SOURCES:
        shown.append(_share("other sources", rest.row(0, named=True)))
    return EvidenceShares(sources=shown, sentence=_sentence(known))


def right_segments(inputs: ReportInputs) -> pl.DataFrame:
    """RIGHT, of the demo's samples with a map: is a far fact planted, are just the segments with planted ones named?"""
    found: list[tuple[str, bool, bool]] = []
    samples = _samples(inputs)
    while batch := [*islice(samples, _BATCH)]:
        for name, one in inputs.evidence(batch).maps.items():
            holding = far_segments_with(one, planted_values(one.sample.context, one.sample.instruction))
            found.append((name, bool(holding), {*one.named} == holding))
    return pl.DataFrame(found, schema=RIGHT, orient="row")


def far_segments_with(found: Evidence, characters: list[int]) -> set[int]:
    """The far segments that these characters of the context stand in."""
    far = [segment for segment in found.segments if not segment.near]
    return {one.index for one in far if any(one.start <= character < one.end for character in characters)}


def _samples(inputs: ReportInputs) -> Iterator[Sample]:
    rows = inputs.raw.lazy().select("sample_id", "source", "context", "instruction", "response").collect()
    return (Sample(**row) for row in rows.iter_rows(named=True))


def _share(source: str, row: Mapping[str, int]) -> NamedShare:
    right = row["right"] if row["known"] == row["samples"] else None
    return NamedShare(source=source, samples=row["samples"], named=row["some"], right=right)


def _sentence(known: pl.DataFrame) -> str:
    """Empty where the truth is not known."""
    parts = []
    for planted, of, named in (
        (True, "with a planted fact that θ_A does not see", "just the segments that hold such facts"),
        (False, "without one", "no segment"),
    ):
        right = known.filter(pl.col("planted") == planted)["right"]
        if right.len():
            share = percent(int(right.sum()) / right.len())
            parts.append(f"of {plural(right.len(), 'sample')} {of}, {named} for {right.sum():,} ({share})")
    return f"It names, {'; '.join(parts)}." if parts else ""
