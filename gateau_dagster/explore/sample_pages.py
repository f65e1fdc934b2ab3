"""Write the samples in full, several per page, so that opening one does not load them all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.explore.folding import TextPart, pieces
from gateau_dagster.pipeline.declarations import EXPLORER_CODE_VERSION
from gateau_dagster.report.evidence import EvidenceSegment, EvidenceToken
from gateau_dagster.report.evidence_card import EvidenceMaps, StripCard, strip_card
from gateau_dagster.report.text import printable
from gateau_dagster.storage.stamp import fingerprint

PAGE_ROWS = 50
"""Samples per page."""
OPENING = 160
"""Characters of an instruction shown in the list."""
LONGEST = 20_000
"""Contexts with at most this many characters are shown whole."""
SEGMENTS = 24
"""In a longer context, the most segments that are shown besides its ends."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The files of a shard of `rows` samples: the beginnings of their instructions, and the pages, in order."""

    rows: int
    openings: str
    pages: Sequence[str]
    page_rows: int = PAGE_ROWS


def shard_files(shard: str, rows: int, versions: Mapping[str, Any]) -> Shard:
    """Return the names of a shard's files; they change if any of its inputs changed.

    Args:
        shard: its partition key.
        versions: of each table that its pages are made from, and of everything else that affects them.
    """
    key = fingerprint({"code": EXPLORER_CODE_VERSION, **versions})[:16]
    count = -(-rows // PAGE_ROWS)
    pages = [f"samples-{shard}-{number:0{len(str(count))}d}-{key}.js" for number in range(count)]
    return Shard(rows=rows, openings=f"openings-{shard}-{key}.js", pages=pages)


def openings(instructions: pl.Series) -> list[str]:
    """Return the beginning of each instruction, on one line."""
    return [" ".join(printable(text[: 2 * OPENING]).split())[:OPENING] for text in instructions]


def sample_content(sample: Sample, told: EvidenceMaps) -> dict[str, Any]:
    """Return a sample for the page: its texts, its evidence map if there is one, and the maps of methods."""
    evidence = told.maps.get(sample.sample_id)
    found: dict[str, Any] = {
        "instruction": shortened(sample.instruction, LONGEST // 2),
        "response": shortened(sample.response, LONGEST // 2),
        "context": [_piece(piece) for piece in pieces(sample.context, evidence, longest=LONGEST, most=SEGMENTS)],
        "characters": len(sample.context),
        "why_not": told.missing,
        "strips": [_strip(strip_card(strip)) for strip in told.strips.get(sample.sample_id, ())],
    }
    if evidence is None:
        return found
    shown = {piece[1] for piece in found["context"]}
    return found | {
        "unseen": evidence.unseen,
        "tokens": [_token(token) for token in evidence.tokens],
        "segments": [_segment(segment) for segment in evidence.segments if segment.index in shown],
        "segment_count": len(evidence.segments),
    }


def shortened(text: str, longest: int) -> str:
    """Return a printable text; of a longer one its start, and how many characters were left out."""
    if len(text) <= longest:
        return printable(text)
    return f"{printable(text[:longest])} … ({len(text) - longest:,} characters left out)"


def _piece(piece: TextPart) -> tuple[str, int, bool, int]:
    return printable(piece.text), -1 if piece.segment is None else piece.segment, piece.seen, piece.left_out


def _token(token: EvidenceToken) -> tuple[Any, ...]:
    """Return text, probabilities, gain, segment and whether the token is named."""
    given = (token.short, token.none, token.near, token.far, token.full, token.gain)
    rounded = (None if value is None else round(value, 4) for value in given)
    return printable(token.text), *rounded, -1 if token.segment is None else token.segment, token.named


def _segment(segment: EvidenceSegment) -> tuple[Any, ...]:
    """Return index, gain, whether it is near, and whether it is named."""
    return segment.index, round(segment.gain, 4), segment.near, segment.named


def _strip(card: StripCard) -> tuple[Any, ...]:
    """Return methods, what is added to, the shaded bars, the stretches that add most, and what is added elsewhere."""
    bars = [(bar.left, bar.width, bar.level, bar.text) for bar in card.bars if bar.level]
    most = [(float(f"{added:.4g}"), text) for added, text in card.most]
    return ", ".join(card.methods), card.adds, bars, most, float(f"{card.elsewhere:.4g}")
